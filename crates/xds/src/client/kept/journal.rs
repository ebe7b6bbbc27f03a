//! The file: entries, each a response as it was applied or a part of a long one, and the mark after which everything
//! has been sent once.
//!
//! An entry has its length and two checksums before it, so that what was torn off, because a process was killed, can be
//! told from what is damaged. A response that is torn does not count at all: half of it may have removed what the other
//! half puts in its place. Anything else that is not as it was written makes the whole file useless.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::time::SystemTime;

use leno_proto::{
    ADDRESS_TYPE, AUTHORIZATION_TYPE, ENDPOINT_POLICY_TYPE, REQUEST_DEFAULTS_TYPE, REQUEST_POLICY_TYPE, ROUTE_TYPE,
    TRUST_BUNDLE_TYPE,
};
use prost::Message as _;
use twox_hash::XxHash64;

use super::super::response::{Response, name_of};

/// First bytes of a journal.
pub(super) const MAGIC: &[u8] = b"leno mesh 1\n";
/// The types that are kept.
const TYPES: [&str; 7] = [
    ADDRESS_TYPE,
    AUTHORIZATION_TYPE,
    TRUST_BUNDLE_TYPE,
    ROUTE_TYPE,
    REQUEST_POLICY_TYPE,
    ENDPOINT_POLICY_TYPE,
    REQUEST_DEFAULTS_TYPE,
];
/// Most resources of an entry.
const ENTRY: usize = 256;
/// Longest entry, bytes: more is no journal.
const LONGEST: u32 = 256 << 20;

/// What follows an entry's head.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Part {
    /// The end of a response, or all of it.
    Last = 0,
    /// More of the same response follows.
    More = 1,
    /// Everything has been sent once.
    Complete = 2,
}

/// Length and kind of what follows, and the checksums of both and of this head.
struct Head {
    length: u32,
    part: Part,
    checksum: u64,
}

impl Head {
    const LENGTH: usize = 24;

    fn of(part: Part, bytes: &[u8]) -> io::Result<Self> {
        let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= LONGEST);
        let length = length.ok_or_else(|| io::Error::other(format!("an entry of {} bytes", bytes.len())))?;
        Ok(Self { length, part, checksum: XxHash64::oneshot(0, bytes) })
    }

    fn bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&(self.part as u32).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.checksum.to_le_bytes());
        let own = XxHash64::oneshot(0, &bytes[..16]);
        bytes[16..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8; Self::LENGTH]) -> io::Result<Self> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let part = [Part::Last, Part::More, Part::Complete].into_iter().find(|part| *part as u32 == word(4));
        let checksum = u64::from(word(8)) | u64::from(word(12)) << 32;
        match part {
            Some(part) if word(0) <= LONGEST => Some(Self { length: word(0), part, checksum }),
            _ => None,
        }
        .filter(|head| head.bytes() == *bytes)
        .ok_or_else(damaged)
    }
}

fn damaged() -> io::Error {
    io::Error::other("it is damaged")
}

/// Where the last whole response ends.
///
/// # Errors
/// If the file is no journal of this version, is damaged, or was never complete.
pub(super) fn check(file: &File) -> io::Result<u64> {
    let mut entries = Entries::until(file, file.metadata()?.len())?;
    let (mut end, mut complete) = (0, false);
    while let Some((part, bytes)) = entries.next_part()? {
        if part != Part::Complete {
            Response::decode(&bytes[..]).map_err(io::Error::other)?;
        }
        complete |= part == Part::Complete;
        if part != Part::More {
            end = entries.at;
        }
    }
    if complete { Ok(end) } else { Err(io::Error::other("it ends before everything was sent")) }
}

/// The entries of a journal.
pub(in super::super) struct Entries<'a> {
    file: BufReader<io::Take<At<'a>>>,
    /// Where the next one begins.
    at: u64,
}

impl<'a> Entries<'a> {
    /// Those before `end`.
    pub(super) fn until(file: &'a File, end: u64) -> io::Result<Self> {
        let mut file = BufReader::with_capacity(64 << 10, At { file, at: 0 }.take(end));
        let mut magic = [0; MAGIC.len()];
        if !fill(&mut file, &mut magic)? || magic != *MAGIC {
            return Err(io::Error::other("it is not of this version of the program"));
        }
        Ok(Self { file, at: MAGIC.len() as u64 })
    }

    /// The next entry; `None` at the end, or where one is torn.
    fn next_part(&mut self) -> io::Result<Option<(Part, Vec<u8>)>> {
        let mut head = [0; Head::LENGTH];
        if !fill(&mut self.file, &mut head)? {
            return Ok(None);
        }
        let head = Head::read(&head)?;
        // Not at once: nothing says yet that there is as much.
        let mut bytes = Vec::new();
        (&mut self.file).take(u64::from(head.length)).read_to_end(&mut bytes)?;
        if bytes.len() < head.length as usize {
            return Ok(None);
        }
        if XxHash64::oneshot(0, &bytes) != head.checksum {
            return Err(damaged());
        }
        self.at += Head::LENGTH as u64 + u64::from(head.length);
        Ok(Some((head.part, bytes)))
    }

    fn next_response(&mut self) -> io::Result<Option<Response>> {
        loop {
            match self.next_part()? {
                None => return Ok(None),
                Some((Part::Complete, _)) => {}
                Some((_, bytes)) => return Response::decode(&bytes[..]).map(Some).map_err(io::Error::other),
            }
        }
    }
}

impl Iterator for Entries<'_> {
    type Item = io::Result<Response>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_response().transpose()
    }
}

/// Reads from a place of its own, whatever else is done with the file.
struct At<'a> {
    file: &'a File,
    at: u64,
}

impl Read for At<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(into, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Whether all of `bytes` were there.
fn fill(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// A journal as it is written.
pub(super) struct Journal {
    file: BufWriter<File>,
    pub(super) size: u64,
    /// Its size when it was written anew last.
    pub(super) base: u64,
    /// Whether everything has been sent once.
    pub(super) complete: bool,
    /// Where it is until it is put in place.
    pub(super) beside: Option<PathBuf>,
    /// The file that this one is to replace.
    pub(super) before: Option<u64>,
}

impl Journal {
    /// In a new file, which has been locked and has this path.
    pub(super) fn create((file, beside): (File, PathBuf)) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(64 << 10, file);
        file.write_all(MAGIC)?;
        let size = MAGIC.len() as u64;
        Ok(Self { file, size, base: size, complete: false, beside: Some(beside), before: None })
    }

    /// Adds a response: everything of it counts, or nothing.
    pub(super) fn append(&mut self, mut response: Response) -> io::Result<()> {
        response.nonce.clear();
        let mut left = std::mem::take(&mut response.resources);
        loop {
            let rest = left.split_off(left.len().min(ENTRY));
            response.resources = std::mem::replace(&mut left, rest);
            self.put(if left.is_empty() { Part::Last } else { Part::More }, &response.encode_to_vec())?;
            if left.is_empty() {
                return Ok(());
            }
            response.removed_resources.clear();
        }
    }

    /// Everything has been sent once.
    pub(super) fn mark_complete(&mut self) -> io::Result<()> {
        self.put(Part::Complete, &[])?;
        self.flush()?;
        self.complete = true;
        self.base = self.size;
        Ok(())
    }

    /// Has the kernel keep what was added: from then on it outlasts the process.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    /// The state is known to be true at that time.
    pub(super) fn is_true_at(&mut self, time: SystemTime) -> io::Result<()> {
        self.file.get_ref().set_modified(time)
    }

    pub(super) fn inode(&self) -> io::Result<u64> {
        Ok(self.file.get_ref().metadata()?.ino())
    }

    #[cfg(test)]
    pub(super) fn write_to(&mut self, file: File) {
        self.file = BufWriter::new(file);
    }

    fn put(&mut self, part: Part, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(&Head::of(part, bytes)?.bytes())?;
        self.file.write_all(bytes)?;
        self.size += (Head::LENGTH + bytes.len()) as u64;
        Ok(())
    }

    /// The same state in a new file, without what is outdated.
    pub(super) fn anew(&mut self, new: (File, PathBuf)) -> io::Result<Self> {
        self.flush()?;
        let file = self.file.get_ref();
        let known = file.metadata()?.modified()?;
        let mut journal = Self::from_saved(file, self.size, new)?;
        journal.mark_complete()?;
        journal.is_true_at(known)?;
        journal.before = Some(self.inode()?);
        Ok(journal)
    }

    /// What a file holds, up to `end`, without what is outdated. Only names are in memory meanwhile.
    pub(super) fn from_saved(file: &File, end: u64, new: (File, PathBuf)) -> io::Result<Self> {
        // Of each resource that is held, the entry that tells of it last.
        let mut latest: [HashMap<String, u64>; TYPES.len()] = Default::default();
        let of = |type_url: &str| TYPES.iter().position(|known| *known == type_url);
        let mut entries = Entries::until(file, end)?;
        while let Some(entry) = entries.next_response()? {
            let Some(held) = of(&entry.type_url).map(|index| &mut latest[index]) else { continue };
            for name in &entry.removed_resources {
                held.remove(name);
            }
            for resource in &entry.resources {
                held.insert(name_of(resource).to_owned(), entries.at);
            }
        }
        let mut journal = Self::create(new)?;
        let mut entries = Entries::until(file, end)?;
        while let Some(mut entry) = entries.next_response()? {
            let Some(held) = of(&entry.type_url).map(|index| &latest[index]) else { continue };
            entry.removed_resources.clear();
            entry.resources.retain(|resource| held.get(name_of(resource)) == Some(&entries.at));
            if !entry.resources.is_empty() {
                journal.append(entry)?;
            }
        }
        Ok(journal)
    }
}
