//! Reads objects from any serde format, with errors and warnings that name the field.
//!
//! serde's derive can report that a field is unknown. It can't suggest which field was probably meant, and it can't
//! tell a field that Kubernetes knows but that has no effect here. [`object!`] generates a decoder that does both. It
//! also runs a field's check while the format still knows the line of the field.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use leno_model::{Map, Name};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Kind;
use crate::consequences;
use crate::suggest::did_you_mean;

/// The state of a decoder: its place in the object, and its messages.
#[derive(Debug)]
pub(super) struct Context {
    /// The kind of the object being read.
    pub(super) kind: Kind,
    mode: Mode,
    path: Vec<Segment>,
    /// The fields of each struct around the one being read, outermost first, with how deep in `path` it begins.
    around: Vec<(usize, [&'static [&'static str]; 2])>,
    /// Where the first value stands that could not be read.
    pub(super) failed: Option<String>,
    pub(super) warnings: Vec<String>,
    pub(super) not_in_force: Vec<NotInForce>,
    pub(super) not_understood: Vec<NotUnderstood>,
}

/// How to treat an unknown field or value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Refuse the object: files are written for this program, so it is a mistake.
    Strict,
    /// Leave it out: an API server may be newer than this program, and has already validated the object. A policy notes
    /// what was left out of it, because without that part it would mean something else.
    Lenient,
}

/// A field that is well known in Kubernetes, and that a person would believe in, although nothing acts on it here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotInForce {
    /// Where it stands, such as `spec.containers[0].livenessProbe`.
    pub path: String,
    /// Its name.
    pub field: String,
    /// What does not happen, as the end of a sentence.
    pub effect: &'static str,
}

/// Something that was left out.
#[derive(Debug)]
pub(super) struct NotUnderstood {
    pub(super) path: String,
    pub(super) message: String,
}

#[derive(Debug)]
enum Segment {
    Field(Cow<'static, str>),
    Index(usize),
}

impl Context {
    pub(super) fn new(kind: Kind, mode: Mode) -> Self {
        Self {
            kind,
            mode,
            path: Vec::new(),
            around: Vec::new(),
            failed: None,
            warnings: Vec::new(),
            not_in_force: Vec::new(),
            not_understood: Vec::new(),
        }
    }

    fn within<T>(&mut self, segment: Segment, inside: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(segment);
        let out = inside(self);
        self.path.pop();
        out
    }

    /// The same, and remembers where it was that it failed: the innermost place is the first to say so.
    fn attempt<T, E>(&mut self, segment: Segment, inside: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<T, E> {
        self.within(segment, |cx| {
            let outcome = inside(cx);
            if outcome.is_err() && cx.failed.is_none() {
                cx.failed = Some(cx.path());
            }
            outcome
        })
    }

    /// The path of the field being read, such as `spec.containers[0].name`.
    pub(super) fn path(&self) -> String {
        text_of(&self.path)
    }

    /// The fields of a struct that is read from here on.
    pub(super) fn enter(&mut self, known: &'static [&'static str], ignored: &'static [&'static str]) {
        self.around.push((self.path.len(), [known, ignored]));
    }

    /// The struct that was entered last has been read.
    pub(super) fn leave(&mut self) {
        self.around.pop();
    }

    /// The nearest struct around the one being read that has such a field, which is where a line with a slip of
    /// indentation belongs. The object itself has an empty path.
    fn owner(&self, field: &str) -> Option<String> {
        let mut around = self.around.iter().rev().skip(1);
        let (depth, _) = around.find(|(_, fields)| fields.iter().any(|fields| fields.contains(&field)))?;
        Some(text_of(self.path.get(..*depth).unwrap_or_default()))
    }

    /// Reports that this program does not understand what is at `path`: as an error, or as a note if it is to be left
    /// out.
    pub(super) fn refuse(&mut self, path: String, message: String) -> Result<(), String> {
        match self.mode {
            Mode::Strict => Err(message),
            Mode::Lenient => {
                self.not_understood.push(NotUnderstood { path, message });
                Ok(())
            }
        }
    }

    /// Reports a field that is valid in Kubernetes and has no effect in this mesh. Only files get a warning; objects of
    /// a cluster are written for other programs, too.
    pub(super) fn ignored(&mut self, field: &'static str) {
        if self.mode == Mode::Lenient {
            return;
        }
        let path = self.within(Segment::Field(field.into()), |cx| cx.path());
        match consequences::of_field(field) {
            Some(effect) => {
                let field = field.to_owned();
                self.not_in_force.push(NotInForce { path, field, effect });
            }
            None => self.warnings.push(format!("{path} is not used by Leno and ignored")),
        }
    }

    /// Reports a field that is in none of the lists.
    fn unknown(&mut self, field: &str, known: &[&'static str], ignored: &[&'static str]) -> Result<(), String> {
        let path = self.within(Segment::Field(field.to_owned().into()), |cx| cx.path());
        let all = known.iter().chain(ignored).copied();
        let message = match (did_you_mean(field, all), self.owner(field)) {
            (_, Some(owner)) if owner.is_empty() => {
                format!("unknown field {path}; {field} stands at the top of the object: is it indented too far?")
            }
            (_, Some(owner)) => format!("unknown field {path}; {field} is a field of {owner}: is it indented too far?"),
            (Some(meant), None) => format!("unknown field {path}; did you mean {meant}?"),
            (None, None) => format!("unknown field {path}; fields here are: {}", known.join(", ")),
        };
        self.refuse(path, message)
    }

    pub(super) fn missing(&mut self, field: &'static str) -> String {
        let path = self.within(Segment::Field(field.into()), |cx| cx.path());
        format!("{path} is required")
    }
}

fn text_of(path: &[Segment]) -> String {
    let mut out = String::new();
    for segment in path {
        match segment {
            Segment::Field(name) if out.is_empty() => out.push_str(name),
            Segment::Field(name) => {
                out.push('.');
                out.push_str(name);
            }
            Segment::Index(index) => out.push_str(&format!("[{index}]")),
        }
    }
    out
}

/// What a check has to object to.
#[derive(Debug)]
pub(super) struct Problem {
    /// Path below the checked field, such as `[1].name`; empty for the field itself.
    pub(super) at: String,
    pub(super) message: String,
}

impl Problem {
    pub(super) fn here(message: impl Into<String>) -> Self {
        Self { at: String::new(), message: message.into() }
    }

    pub(super) fn at(at: impl Into<String>, message: impl Into<String>) -> Self {
        Self { at: at.into(), message: message.into() }
    }
}

/// A type that can be a field's value.
pub(super) trait Field<'de>: Sized {
    fn decode<D: Deserializer<'de>>(from: D, cx: &mut Context) -> Result<Self, D::Error>;
}

/// A check of a field's value.
pub(super) type Check<T> = fn(&T, &mut Context) -> Result<(), Problem>;

/// Seed for a field's value. `null` counts as absent, as in Kubernetes.
///
/// The check runs here, and [`Key`] refuses unknown keys, because a format adds the line only to errors raised inside
/// the seed that it was given.
pub(super) struct At<'c, T>(pub(super) &'c mut Context, pub(super) &'static str, pub(super) Option<Check<T>>);

impl<'de, T: Field<'de>> DeserializeSeed<'de> for At<'_, T> {
    type Value = Option<T>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Option<T>, D::Error> {
        let Self(cx, name, check) = self;
        cx.attempt(Segment::Field(name.into()), |cx| {
            let value = from.deserialize_option(Nullable(cx, PhantomData))?;
            if let (Some(value), Some(check)) = (&value, check)
                && let Err(problem) = check(value, cx)
            {
                let path = format!("{}{}", cx.path(), problem.at);
                let message = format!("{path}: {}", problem.message);
                cx.refuse(path, message).map_err(D::Error::custom)?;
            }
            Ok(value)
        })
    }
}

/// Seed for a field's name.
pub(super) struct Key<'c> {
    pub(super) cx: &'c mut Context,
    pub(super) known: &'static [&'static str],
    pub(super) ignored: &'static [&'static str],
    pub(super) silent: &'static [&'static str],
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<String, D::Error> {
        let key = <String as Deserialize>::deserialize(from)?;
        if [self.known, self.ignored, self.silent].iter().any(|list| list.contains(&key.as_str())) {
            return Ok(key);
        }
        self.cx.unknown(&key, self.known, self.ignored).map_err(D::Error::custom)?;
        Ok(key)
    }
}

struct Nullable<'c, T>(&'c mut Context, PhantomData<T>);

impl<'de, T: Field<'de>> Visitor<'de> for Nullable<'_, T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or null")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        T::decode(from, self.0).map(Some)
    }
}

/// Skips a value. Returns whether it was something other than `null`.
pub(super) fn skip<'de, A: MapAccess<'de>>(map: &mut A) -> Result<bool, A::Error> {
    map.next_value::<Option<IgnoredAny>>().map(|value| value.is_some())
}

/// The decoder of one struct. Implementations differ in `visit_map`.
pub(super) trait Struct<'de>: Sized {
    fn read<A: MapAccess<'de>>(map: A, cx: &mut Context) -> Result<Self, A::Error>;
}

pub(super) struct StructVisitor<'c, T>(pub(super) &'c mut Context, pub(super) PhantomData<T>);

impl<'de, T: Struct<'de>> Visitor<'de> for StructVisitor<'_, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping of fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::read(map, self.0)
    }
}

impl<'de, T: Field<'de>> Field<'de> for Option<T> {
    fn decode<D: Deserializer<'de>>(from: D, cx: &mut Context) -> Result<Self, D::Error> {
        T::decode(from, cx).map(Some)
    }
}

impl<'de, T: Field<'de>> Field<'de> for Vec<T> {
    fn decode<D: Deserializer<'de>>(from: D, cx: &mut Context) -> Result<Self, D::Error> {
        from.deserialize_seq(List(cx, PhantomData))
    }
}

impl<'de, T: Field<'de>> Field<'de> for Box<T> {
    fn decode<D: Deserializer<'de>>(from: D, cx: &mut Context) -> Result<Self, D::Error> {
        T::decode(from, cx).map(Self::new)
    }
}

impl<'de, T: Field<'de>> Field<'de> for Box<[T]> {
    fn decode<D: Deserializer<'de>>(from: D, cx: &mut Context) -> Result<Self, D::Error> {
        Vec::decode(from, cx).map(Self::from)
    }
}

impl<'de, T: Field<'de>> Field<'de> for Arc<[T]> {
    fn decode<D: Deserializer<'de>>(from: D, cx: &mut Context) -> Result<Self, D::Error> {
        Vec::decode(from, cx).map(Self::from)
    }
}

struct List<'c, T>(&'c mut Context, PhantomData<T>);

impl<'de, T: Field<'de>> Visitor<'de> for List<'_, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let mut out = Vec::new();
        while let Some(item) = seq.next_element_seed(Item(self.0, Segment::Index(out.len()), PhantomData))? {
            out.push(item);
        }
        // Most lists have one entry, and objects are kept for long.
        out.shrink_to_fit();
        Ok(out)
    }
}

struct Item<'c, T>(&'c mut Context, Segment, PhantomData<T>);

impl<'de, T: Field<'de>> DeserializeSeed<'de> for Item<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<T, D::Error> {
        let Self(cx, segment, _) = self;
        cx.attempt(segment, |cx| T::decode(from, cx))
    }
}

impl<'de, K: MapKey, T: Field<'de>> Field<'de> for BTreeMap<K, T> {
    fn decode<D: Deserializer<'de>>(from: D, cx: &mut Context) -> Result<Self, D::Error> {
        from.deserialize_map(Entries(cx, PhantomData))
    }
}

struct Entries<'c, K, T>(&'c mut Context, PhantomData<(K, T)>);

impl<'de, K: MapKey, T: Field<'de>> Visitor<'de> for Entries<'_, K, T> {
    type Value = BTreeMap<K, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut out = BTreeMap::new();
        while let Some(raw) = map.next_key::<String>()? {
            let key = K::parse(&raw).map_err(|message| {
                let path = self.0.within(Segment::Field(raw.clone().into()), |cx| cx.path());
                A::Error::custom(format!("{path}: {message}"))
            })?;
            let value = map.next_value_seed(Item(self.0, Segment::Field(raw.into()), PhantomData))?;
            out.insert(key, value);
        }
        Ok(out)
    }
}

/// A type that can be the key of a mapping. In every format, keys are text.
pub(super) trait MapKey: Ord + Sized {
    fn parse(text: &str) -> Result<Self, String>;
}

impl MapKey for Name {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.into())
    }
}

impl<'de> Field<'de> for Map<Name, Name> {
    fn decode<D: Deserializer<'de>>(from: D, cx: &mut Context) -> Result<Self, D::Error> {
        BTreeMap::<Name, Name>::decode(from, cx).map(Self::from_iter)
    }
}

/// Strings are requested as "any value", so that `8080` and `true` are refused as Kubernetes refuses them.
impl<'de> Field<'de> for String {
    fn decode<D: Deserializer<'de>>(from: D, _: &mut Context) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = String;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string (put it in quotes)")
            }
            fn visit_str<E>(self, text: &str) -> Result<String, E> {
                Ok(text.to_owned())
            }
            fn visit_string<E>(self, text: String) -> Result<String, E> {
                Ok(text)
            }
        }
        from.deserialize_any(Text)
    }
}

impl<'de> Field<'de> for Name {
    fn decode<D: Deserializer<'de>>(from: D, cx: &mut Context) -> Result<Self, D::Error> {
        String::decode(from, cx).map(Self::from)
    }
}

impl<'de> Field<'de> for bool {
    fn decode<D: Deserializer<'de>>(from: D, _: &mut Context) -> Result<Self, D::Error> {
        Self::deserialize(from)
    }
}

/// Integers within a range.
pub(super) struct Integer {
    pub(super) what: &'static str,
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Visitor<'_> for Integer {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} to {}", self.what, self.min, self.max)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<u64, E> {
        if (self.min..=self.max).contains(&value) {
            Ok(value)
        } else {
            Err(E::invalid_value(serde::de::Unexpected::Unsigned(value), &self))
        }
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<u64, E> {
        match u64::try_from(value) {
            Ok(value) => self.visit_u64(value),
            Err(_) => Err(E::invalid_value(serde::de::Unexpected::Signed(value), &self)),
        }
    }
}

impl<'de> Field<'de> for u32 {
    fn decode<D: Deserializer<'de>>(from: D, _: &mut Context) -> Result<Self, D::Error> {
        let max = i32::MAX.unsigned_abs();
        let value = from.deserialize_any(Integer { what: "a whole number", min: 0, max: max.into() })?;
        Ok(u32::try_from(value).unwrap_or(max))
    }
}

/// Declares the struct of an object or of a part of one, with its decoder.
///
/// Each field is `name: Type = "keyInTheManifest"`, then optionally in parentheses `required`,
/// `default VALUE`, or `check FUNCTION` (also `required check FUNCTION`). `besides` are fields that are in
/// no manifest. `ignored` lists fields
/// that exist in the standard and have no effect here: they warn. `silent` lists those that are
/// written by the system, or say nothing a mesh could act on: they pass.
macro_rules! object {
    (
        $(#[$meta:meta])*
        pub struct $Name:ident {
            $( $(#[$fmeta:meta])* $field:ident : $ty:ty = $key:literal $(($($flag:tt)*))? ),* $(,)?
        }
        $(besides { $( $(#[$bmeta:meta])* $besides:ident : $bty:ty ),* $(,)? })?
        $(ignored [ $($ignored:literal),* $(,)? ])?
        $(silent [ $($silent:literal),* $(,)? ])?
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $Name {
            $( $(#[$fmeta])* pub $field: $ty, )*
            $($( $(#[$bmeta])* pub $besides: $bty, )*)?
        }

        impl Default for $Name {
            fn default() -> Self {
                Self {
                    $( $field: object!(@default $($($flag)*)?), )*
                    $($( $besides: Default::default(), )*)?
                }
            }
        }

        impl<'de> $crate::decode::Struct<'de> for $Name {
            #[allow(unused_mut, unused_variables, clippy::needless_pass_by_ref_mut)]
            fn read<A: serde::de::MapAccess<'de>>(
                mut map: A,
                cx: &mut $crate::decode::Context,
            ) -> Result<Self, A::Error> {
                const KNOWN: &[&str] = &[$($key),*];
                const IGNORED: &[&str] = &[$($($ignored),*)?];
                const SILENT: &[&str] = &[$($($silent),*)?];
                cx.enter(KNOWN, IGNORED);
                let mut out = Self::default();
                let mut seen: [bool; KNOWN.len()] = [false; KNOWN.len()];
                loop {
                    let seed = $crate::decode::Key { cx, known: KNOWN, ignored: IGNORED, silent: SILENT };
                    let Some(key) = map.next_key_seed(seed)? else { break };
                    match key.as_str() {
                        $($key => {
                            let check: Option<$crate::decode::Check<$ty>> = object!(@check $($($flag)*)?);
                            if let Some(value) = map.next_value_seed($crate::decode::At::<$ty>(cx, $key, check))? {
                                out.$field = value;
                                if let Some(seen) = KNOWN.iter().position(|k| *k == $key).and_then(|i| seen.get_mut(i)) {
                                    *seen = true;
                                }
                            }
                        })*
                        $($($ignored => {
                            if $crate::decode::skip(&mut map)? {
                                cx.ignored($ignored);
                            }
                        })*)?
                        _ => {
                            $crate::decode::skip(&mut map)?;
                        }
                    }
                }
                $(object!(@required A, cx, $key, KNOWN, seen, $($($flag)*)?);)*
                cx.leave();
                Ok(out)
            }
        }

        impl<'de> $crate::decode::Field<'de> for $Name {
            fn decode<D: serde::Deserializer<'de>>(
                from: D,
                cx: &mut $crate::decode::Context,
            ) -> Result<Self, D::Error> {
                from.deserialize_map($crate::decode::StructVisitor(cx, std::marker::PhantomData))
            }
        }
    };

    (@default default $value:expr) => { $value };
    (@default $($other:tt)*) => { Default::default() };

    (@check check $check:path) => { Some($check) };
    (@check required check $check:path) => { Some($check) };
    (@check $($other:tt)*) => { None };

    (@required $A:ident, $cx:ident, $key:literal, $known:ident, $seen:ident, required $($other:tt)*) => {
        if !$known.iter().zip($seen).any(|(key, seen)| seen && *key == $key) {
            return Err(serde::de::Error::custom($cx.missing($key)));
        }
    };
    (@required $A:ident, $cx:ident, $key:literal, $known:ident, $seen:ident, $($other:tt)*) => {};
}
pub(super) use object;

/// Declares an enum that stands for one of a fixed set of words.
macro_rules! word {
    (
        $(#[$meta:meta])*
        pub enum $Name:ident { $( $(#[$vmeta:meta])* $Variant:ident = $text:literal ),* $(,)? }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub enum $Name { $( $(#[$vmeta])* $Variant ),* }

        impl $Name {
            /// The word, as written in a manifest.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$Variant => $text),* }
            }
        }

        impl std::fmt::Display for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl<'de> $crate::decode::Field<'de> for $Name {
            fn decode<D: serde::Deserializer<'de>>(
                from: D,
                cx: &mut $crate::decode::Context,
            ) -> Result<Self, D::Error> {
                use serde::de::Error as _;
                let text = String::decode(from, cx)?;
                match text.as_str() {
                    $($text => Ok(Self::$Variant),)*
                    other => {
                        $crate::decode::unknown_word(other, &[$($text),*], cx).map_err(D::Error::custom)?;
                        Ok(Self::default())
                    }
                }
            }
        }
    };
}
pub(super) use word;

pub(super) fn unknown_word(word: &str, known: &[&'static str], cx: &mut Context) -> Result<(), String> {
    let path = cx.path();
    let message = match did_you_mean(word, known.iter().copied()) {
        Some(meant) => format!("{path}: unknown value {word:?}; did you mean {meant}?"),
        None => format!("{path}: unknown value {word:?}; possible are: {}", known.join(", ")),
    };
    cx.refuse(path, message)
}
