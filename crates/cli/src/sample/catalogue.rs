//! The emoji one can vote for.

/// Shortcode and character of each emoji.
pub(super) const EMOJI: [(&str, &str); 14] = [
    ("doughnut", "🍩"),
    ("joy", "😂"),
    ("rocket", "🚀"),
    ("tada", "🎉"),
    ("cat", "🐱"),
    ("dog", "🐶"),
    ("pizza", "🍕"),
    ("taco", "🌮"),
    ("spider", "🕷"),
    ("yarn", "🧶"),
    ("thread", "🧵"),
    ("lock", "🔒"),
    ("nerd_face", "🤓"),
    ("see_no_evil", "🙈"),
];
