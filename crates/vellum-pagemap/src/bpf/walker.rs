//! Follows the pointers from an open `pagemap` to the root page table, and walks from there.

use std::{fmt, io};

use super::WalkerError;
use super::direct::{DirectMap, MarkerPage};
use super::layout::StructOffsets;
use super::program::{KernelMemory, PAGE, Program};
use super::walk::{Walk, WalkedTables, leads, span};
use crate::Pagemap;

/// Reads the page tables of processes from kernel memory.
pub struct Walker {
    memory: Program,
    layout: StructOffsets,
    direct: DirectMap,
    /// Page-table levels, the root included.
    levels: usize,
}

/// Leaves out the kernel addresses, which should not be in logs.
impl fmt::Debug for Walker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walker").field("levels", &self.levels).finish_non_exhaustive()
    }
}

impl Walker {
    /// Loads the BPF program, reads BTF and finds the direct map, which takes a fifth of a second,
    /// most of it for BTF. Then checks the result: a walk of this process's page tables has to find
    /// the frame that `pagemap` reports for a page.
    ///
    /// # Errors
    /// [`WalkerError`].
    pub fn open() -> Result<Self, WalkerError> {
        if !cfg!(target_arch = "x86_64") {
            return Err(WalkerError::Architecture);
        }
        let mut memory = Program::open().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => WalkerError::Denied,
            _ => WalkerError::NoProgram(error),
        })?;
        let layout = StructOffsets::read()?;
        let marker = MarkerPage::new();
        let chain = Chain::follow(&mut memory, &layout, &Pagemap::own()?)?;
        let direct = DirectMap::find(&mut memory, &[chain.task, chain.files, chain.file, chain.space], &marker)?;
        // The direct map is in the upper half of the addresses, which begins here with four levels
        // (Linux, `Documentation/arch/x86/x86_64/mm.rst`).
        let levels = if direct.base >= 0xffff_8000_0000_0000 { 4 } else { 5 };
        let mut walker = Walker { memory, layout, direct, levels };
        match walker.translate(chain.space, marker.address())? {
            place if Some(place) == marker.physical() => Ok(walker),
            _ => Err(WalkerError::Unknown),
        }
    }

    /// Reads all page tables of the address space that `pagemap` belongs to.
    ///
    /// The address space may change during the walk. The walker reads each page table in one go,
    /// and reports it only if the PTE that leads to it is unchanged afterwards. So each reported
    /// table belonged to the address space when it was read. [`WalkedTables::changed`] is set if
    /// page tables were allocated or freed between the first and the last read; last-level PTEs may
    /// change without that.
    ///
    /// # Errors
    /// [`WalkerError::Unknown`]: a PTE leads nowhere, or memory can't be read any more.
    pub fn tables(&mut self, pagemap: &Pagemap) -> Result<WalkedTables, WalkerError> {
        let space = Chain::follow(&mut self.memory, &self.layout, pagemap)?.space;
        let counted = self.memory.word(space, self.layout.counted)? / PAGE;
        let root = self.memory.word(space, self.layout.root)?;
        let Walk { levels, changed, .. } = Walk::all(&mut self.memory, self.direct, self.levels, root)?;
        let now = self.memory.word(space, self.layout.counted)? / PAGE;
        Ok(WalkedTables { levels, counted: now, changed: changed || now != counted })
    }

    /// Returns the physical address of a virtual address.
    fn translate(&mut self, space: u64, address: u64) -> io::Result<u64> {
        let mut table = self.memory.word(space, self.layout.root)?;
        let mut level = self.levels - 1;
        loop {
            let span = span(level);
            let entry = self.memory.page(table)?[(address / span % 512) as usize];
            if !leads(level, entry) {
                return Ok(self.direct.physical(entry) / span * span + address % span / PAGE * PAGE);
            }
            (table, level) = (self.direct.address(entry), level - 1);
        }
    }
}

/// The addresses of the kernel structures from this thread's `task_struct` to the `mm_struct` of an
/// open `pagemap`. The structures live as long as the file is open.
struct Chain {
    task: u64,
    files: u64,
    file: u64,
    space: u64,
}

impl Chain {
    fn follow(memory: &mut Program, layout: &StructOffsets, pagemap: &Pagemap) -> io::Result<Self> {
        let task = memory.task()?;
        let files = memory.word(task, layout.files)?;
        let table = memory.word(files, layout.table)?;
        let array = memory.word(table, layout.array)?;
        let file = memory.word(array, 8 * pagemap.number())?;
        let space = memory.word(file, layout.private)?;
        Ok(Chain { task, files, file, space })
    }
}
