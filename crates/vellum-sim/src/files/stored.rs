//! The pages of files that a device keeps once the engine has written them.

use std::collections::{BTreeMap, HashMap};

use vellum::addr::FRAME_SIZE;

/// The words of a page.
pub const WORDS: usize = FRAME_SIZE as usize / size_of::<u64>();
/// The number of pages that are kept together.
const CHUNK: usize = 512;

/// The contents of a page that was written.
#[derive(Debug)]
pub enum Contents {
    /// One word, repeated.
    Filled(u64),
    Words(Box<[u64; WORDS]>),
}

impl Contents {
    /// Returns the contents of a page with these words.
    pub fn of(words: impl Iterator<Item = u64> + Clone) -> Self {
        let first = words.clone().next().unwrap_or(0);
        if words.clone().all(|word| word == first) {
            return Contents::Filled(first);
        }
        let mut page = Box::new([0; WORDS]);
        page.iter_mut().zip(words).for_each(|(to, word)| *to = word);
        Contents::Words(page)
    }

    /// Returns a word by its index.
    pub fn word(&self, nth: usize) -> u64 {
        match self {
            Contents::Filled(word) => *word,
            Contents::Words(words) => words[nth],
        }
    }
}

/// The pages of 4 KiB that were written, by tag and number. Those of one file lie side by side, so
/// that reading them in order costs no more than reading a disk in memory does.
#[derive(Debug, Default)]
pub struct Stored(HashMap<u64, Pages>);

type Pages = BTreeMap<u64, Box<[Option<Contents>; CHUNK]>>;

/// The file with a tag. Its contents are a function of place until they are written.
#[derive(Clone, Copy)]
pub struct File<'a> {
    tag: u64,
    written: Option<&'a Pages>,
}

/// Returns the number of a page's chunk, and the page's place in it.
fn place(page: u64) -> (u64, usize) {
    (page / CHUNK as u64, page as usize % CHUNK)
}

impl Stored {
    /// Returns the file with a tag, also one that was never written.
    pub fn file(&self, tag: u64) -> File<'_> {
        File { tag, written: self.0.get(&tag) }
    }

    /// Writes a page.
    pub fn write(&mut self, tag: u64, page: u64, contents: Contents) {
        let (chunk, nth) = place(page);
        let chunk = self.0.entry(tag).or_default().entry(chunk);
        chunk.or_insert_with(|| Box::new([const { None }; CHUNK]))[nth] = Some(contents);
    }
}

impl<'a> File<'a> {
    /// Returns the contents of a page that was written.
    fn page(self, page: u64) -> Option<&'a Contents> {
        let (chunk, nth) = place(page);
        self.written?.get(&chunk)?[nth].as_ref()
    }

    /// Returns the word at a byte offset of a file that was not written there.
    fn unwritten(self, at: u64) -> u64 {
        self.tag.rotate_left(32) ^ at
    }

    /// Returns the word at a byte offset, a multiple of 8.
    pub fn word(self, at: u64) -> u64 {
        let page = self.page(at / FRAME_SIZE);
        page.map_or_else(|| self.unwritten(at), |page| page.word((at % FRAME_SIZE) as usize / 8))
    }

    /// Reads a page.
    pub fn read(self, page: u64, to: &mut [u64; WORDS]) {
        match self.page(page) {
            Some(Contents::Filled(word)) => to.fill(*word),
            Some(Contents::Words(words)) => *to = **words,
            None => (page * FRAME_SIZE..).step_by(8).zip(to).for_each(|(at, word)| *word = self.unwritten(at)),
        }
    }
}
