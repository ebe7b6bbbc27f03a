use super::*;

#[test]
fn only_the_programs_own_code_is_found() {
    let maps = "\
560000000000-560000100000 r--p 00000000 fe:00 1234       /usr/local/bin/leno
560000100000-560000f00000 r-xp 00100000 fe:00 1234       /usr/local/bin/leno
560000f00000-560000f80000 r--p 00f00000 fe:00 1234       /usr/local/bin/leno
7f0000000000-7f0000100000 r-xp 00000000 fe:00 99         /usr/lib/libc.so.6
";
    assert_eq!(code_in(maps, "/usr/local/bin/leno"), Some(0x5600_0010_0000..0x5600_00f0_0000));
    assert_eq!(code_in(maps, "/bin/leno"), None, "an ending is not the path");
    let replaced = maps.replace("bin/leno", "bin/leno (deleted)");
    assert!(code_in(&replaced, "/usr/local/bin/leno (deleted)").is_some());
    assert_eq!(code_in("", "/usr/local/bin/leno"), None);
}

#[test]
fn code_is_unmapped_and_comes_back() {
    let resident = || {
        let code = program_code().expect("a program has code");
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begins = format!("{:x}-{:x} ", code.start, code.end);
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&begins));
        let rss = lines.find_map(|line| line.strip_prefix("Rss:")).expect("its memory is listed");
        rss.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    // Touches all of it.
    let code = program_code().unwrap();
    let mut file = std::fs::File::open("/proc/self/mem").unwrap();
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(code.start as u64)).unwrap();
    std::io::copy(&mut std::io::Read::take(file, code.len() as u64), &mut std::io::sink()).unwrap();
    let before = resident();
    trim();
    let after = resident();
    // What looks at it is code as well.
    assert!(after < before, "{before} KiB of code were mapped, and {after} still are");
}
