//! Tables, from the highest to the lowest.

use std::{fmt, io};

use super::Refused;
use super::direct::{Direct, Own};
use super::layout::Layout;
use super::program::{Memory, PAGE};
use crate::Pagemap;
use crate::tables::LEVELS;

/// Bits of an entry (Intel SDM, volume 3, 4.5; Linux, `arch/x86/include/asm/pgtable_types.h`).
const PRESENT: u64 = 1;
/// At an upper level: it maps memory.
const HUGE: u64 = 1 << 7;
/// What hardware records, on some processors of entries that are empty as well.
const RECORDED: u64 = 1 << 5 | 1 << 6;

/// A page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// The first address of its range.
    pub start: u64,
    /// Entries that are not empty.
    pub entries: u16,
    /// Nothing is in it, nor in any table below it: it is needed for nothing.
    pub bare: bool,
}

impl Table {
    /// Whether it has no entries. (A table of an upper level that leads only to such is not empty, but bare.)
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }
}

/// The tables of an address space, as they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walked {
    /// Of each level, the lowest first, and in ascending order; but for the highest table, which is always there.
    pub levels: Vec<Vec<Table>>,
    /// How many there are as Linux counts them (`VmPTE`), when all had been read.
    pub counted: u64,
    /// Linux has made or freed tables meanwhile: some may be missing, or gone.
    pub changed: bool,
}

impl Walked {
    /// Tables that are put by, for huge pages: Linux counts them, and no entry leads to them. Not quite right, or even negative, if some
    /// were made or freed meanwhile.
    pub fn deposited(&self) -> i64 {
        // Of five levels, the fourth is not counted.
        self.counted as i64 - self.levels.iter().take(LEVELS).map(|level| level.len() as i64).sum::<i64>()
    }
}

/// Reads page tables.
pub struct Walker {
    memory: Memory,
    layout: Layout,
    direct: Direct,
    /// Of tables, the highest included.
    levels: usize,
}

/// Where things are in the kernel is nothing to be written into logs.
impl fmt::Debug for Walker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walker").field("levels", &self.levels).finish_non_exhaustive()
    }
}

impl Walker {
    /// Find out how. It takes a fifth of a second, most of it to read what the kernel says of its structures. And find out whether it
    /// works: our own tables have to say of a page of ours what `pagemap` says.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn open() -> Result<Self, Refused> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Refused::Architecture);
        }
        let mut memory = Memory::open().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => Refused::Denied,
            _ => Refused::NoProgram(error),
        })?;
        let layout = Layout::read()?;
        let own = Own::new();
        let chain = Chain::follow(&mut memory, &layout, &Pagemap::own()?)?;
        let direct = Direct::find(&mut memory, &[chain.task, chain.files, chain.file, chain.space], &own)?;
        // It is in the upper half of the addresses, which begins here if there are four levels (Linux,
        // `Documentation/arch/x86/x86_64/mm.rst`).
        let levels = if direct.base >= 0xffff_8000_0000_0000 { 4 } else { 5 };
        let mut walker = Walker { memory, layout, direct, levels };
        match walker.place(chain.space, own.address())? {
            place if Some(place) == own.place() => Ok(walker),
            _ => Err(Refused::Unknown),
        }
    }

    /// Read all tables of the address space that a `pagemap` is of.
    ///
    /// It may change meanwhile. Each table is read at once, and told only if what had led to it still did so afterwards: what is told of a
    /// table was true of one of this address space at some time. [`Walked::changed`] says whether tables were made or freed between the
    /// first and the last; entries of the lowest level may have changed without that.
    ///
    /// # Errors
    /// [`Refused::Unknown`]: they lead where nothing is.
    pub fn tables(&mut self, pagemap: &Pagemap) -> Result<Walked, Refused> {
        let space = Chain::follow(&mut self.memory, &self.layout, pagemap)?.space;
        let counted = self.memory.word(space, self.layout.counted)? / PAGE;
        let root = self.memory.word(space, self.layout.root)?;
        let entries = self.memory.page(root)?;
        let levels = vec![Vec::new(); self.levels - 1];
        let mut walk = Walk { walker: self, walked: Walked { levels, counted, changed: false } };
        // The upper half is the kernel's.
        walk.below(walk.walker.levels - 1, 0, root, &entries[..256])?;
        let mut walked = walk.walked;
        walked.counted = self.memory.word(space, self.layout.counted)? / PAGE;
        walked.changed |= walked.counted != counted;
        Ok(walked)
    }

    /// Where in memory an address of an address space is.
    fn place(&mut self, space: u64, address: u64) -> io::Result<u64> {
        let mut table = self.memory.word(space, self.layout.root)?;
        let mut level = self.levels - 1;
        loop {
            let span = span(level);
            let entry = self.memory.page(table)?[(address / span % 512) as usize];
            if !leads(level, entry) {
                return Ok(self.direct.place(entry) / span * span + address % span / PAGE * PAGE);
            }
            (table, level) = (self.direct.address(entry), level - 1);
        }
    }
}

/// The structures that lead from us to an address space of which we have opened the `pagemap`. As long as that is open, they all stay.
struct Chain {
    task: u64,
    files: u64,
    file: u64,
    space: u64,
}

impl Chain {
    fn follow(memory: &mut Memory, layout: &Layout, pagemap: &Pagemap) -> io::Result<Self> {
        let task = memory.task()?;
        let files = memory.word(task, layout.files)?;
        let table = memory.word(files, layout.table)?;
        let array = memory.word(table, layout.array)?;
        let file = memory.word(array, 8 * pagemap.number())?;
        let space = memory.word(file, layout.private)?;
        Ok(Chain { task, files, file, space })
    }
}

struct Walk<'a> {
    walker: &'a mut Walker,
    walked: Walked,
}

impl Walk<'_> {
    /// All tables below one of some level, which begins at an address, was read at another, and has these entries. Whether nothing is in
    /// any of them, nor in it.
    fn below(&mut self, level: usize, start: u64, at: u64, entries: &[u64]) -> io::Result<bool> {
        let (leading, mapping): (Vec<_>, Vec<_>) =
            (0..).zip(entries).filter(|(_, entry)| is_filled(entry)).partition(|(_, entry)| leads(level, **entry));
        let mut bare = mapping.is_empty();
        if leading.is_empty() {
            return Ok(bare);
        }
        let places: Vec<u64> = leading.iter().map(|(_, entry)| self.walker.direct.address(**entry)).collect();
        let tables = self.walker.memory.pages(&places)?;
        let now = self.walker.memory.page(at)?;
        for (((n, entry), place), table) in leading.into_iter().zip(places).zip(tables) {
            // Linux takes an entry out, and frees the table later; so if it is still there, it was a table when it was read.
            if (now[n] ^ entry) & !RECORDED != 0 {
                self.walked.changed = true;
                continue;
            }
            let (table, start) = (table?, start + n as u64 * span(level));
            let entries = table.iter().filter(|entry| is_filled(entry)).count() as u16;
            let here = self.walked.levels[level - 1].len();
            self.walked.levels[level - 1].push(Table { start, entries, bare: false });
            let nothing = self.below(level - 1, start, place, &table)?;
            self.walked.levels[level - 1][here].bare = nothing;
            bare &= nothing;
        }
        Ok(bare)
    }
}

fn is_filled(entry: &u64) -> bool {
    entry & !RECORDED != 0
}

/// Whether an entry of a table of some level leads to another one.
fn leads(level: usize, entry: u64) -> bool {
    level > 0 && entry & (PRESENT | HUGE) == PRESENT
}

/// Bytes of addresses that an entry of a table of some level is for.
fn span(level: usize) -> u64 {
    PAGE << (9 * level)
}
