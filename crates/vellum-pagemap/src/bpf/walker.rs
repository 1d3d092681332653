//! From an open `pagemap` to the tables.

use std::{fmt, io};

use super::Refused;
use super::direct::{Direct, Own};
use super::layout::Layout;
use super::program::{Memory, PAGE, Program};
use super::walk::{Walk, Walked, leads, span};
use crate::Pagemap;

/// Reads page tables.
pub struct Walker {
    memory: Program,
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
    /// Find out how. It takes a fifth of a second, most of it to read what the kernel says of its
    /// structures. And find out whether it works: our own tables have to say of a page of ours what
    /// `pagemap` says.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn open() -> Result<Self, Refused> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Refused::Architecture);
        }
        let mut memory = Program::open().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => Refused::Denied,
            _ => Refused::NoProgram(error),
        })?;
        let layout = Layout::read()?;
        let own = Own::new();
        let chain = Chain::follow(&mut memory, &layout, &Pagemap::own()?)?;
        let direct = Direct::find(&mut memory, &[chain.task, chain.files, chain.file, chain.space], &own)?;
        // It is in the upper half of the addresses, which begins here if there are four levels
        // (Linux, `Documentation/arch/x86/x86_64/mm.rst`).
        let levels = if direct.base >= 0xffff_8000_0000_0000 { 4 } else { 5 };
        let mut walker = Walker { memory, layout, direct, levels };
        match walker.place(chain.space, own.address())? {
            place if Some(place) == own.place() => Ok(walker),
            _ => Err(Refused::Unknown),
        }
    }

    /// Read all tables of the address space that a `pagemap` is of.
    ///
    /// It may change meanwhile. Each table is read in one go, and told only if what had led to it
    /// still did so afterwards: what is told of a table was true of one of this address space at
    /// some time. [`Walked::changed`] says whether tables were made or freed between the first and
    /// the last; entries of the lowest level may have changed without that.
    ///
    /// # Errors
    /// [`Refused::Unknown`]: they lead where nothing is, or can't be read any more.
    pub fn tables(&mut self, pagemap: &Pagemap) -> Result<Walked, Refused> {
        let space = Chain::follow(&mut self.memory, &self.layout, pagemap)?.space;
        let counted = self.memory.word(space, self.layout.counted)? / PAGE;
        let root = self.memory.word(space, self.layout.root)?;
        let Walk { levels, changed, .. } = Walk::all(&mut self.memory, self.direct, self.levels, root)?;
        let now = self.memory.word(space, self.layout.counted)? / PAGE;
        Ok(Walked { levels, counted: now, changed: changed || now != counted })
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

/// The structures that lead from us to an address space of which we have opened the `pagemap`. As
/// long as that is open, they all stay.
struct Chain {
    task: u64,
    files: u64,
    file: u64,
    space: u64,
}

impl Chain {
    fn follow(memory: &mut Program, layout: &Layout, pagemap: &Pagemap) -> io::Result<Self> {
        let task = memory.task()?;
        let files = memory.word(task, layout.files)?;
        let table = memory.word(files, layout.table)?;
        let array = memory.word(table, layout.array)?;
        let file = memory.word(array, 8 * pagemap.number())?;
        let space = memory.word(file, layout.private)?;
        Ok(Chain { task, files, file, space })
    }
}
