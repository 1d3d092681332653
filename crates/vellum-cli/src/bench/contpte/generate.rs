//! Generates a synthetic trace, shaped like a compiler's: much code in random order, a heap that
//! grows and is accessed again, a stack.

use std::io;

use vellum_sim::Access;

use super::filter::Filter;
use super::trace::{Change, Header, PAGE_SHIFT, Record, Totals, Writer};

const TEXT: u64 = 0x40_0000;
const TEXT_PAGES: u64 = 1024;
const DATA: u64 = 0x100_0000;
const HEAP: u64 = 0x55_0000_0000;
const HEAP_PAGES: u64 = 4096;
const STACK: u64 = 0x7f_0000_0000;
const STACK_PAGES: u64 = 64;
/// Pages of one function's code.
const FUNCTION: u64 = 2;
/// The number of function calls in one pass of the compiler. Each pass has functions of its own.
const PASS: u64 = 2000;

/// Returns a compressed trace of `calls` function calls.
///
/// # Errors
/// The compression failed.
pub fn generate(calls: u64, filter: usize) -> io::Result<Vec<u8>> {
    let mut trace = Trace {
        to: Writer::new(Vec::new(), Header { filter })?,
        filter: Filter::new(filter),
        totals: Totals::default(),
    };
    let anonymous = |at, pages: u64| Change::Existing { at, len: pages << PAGE_SHIFT, rights: 3, file: 0, offset: 0 };
    let text = Change::Map { at: TEXT, len: TEXT_PAGES << PAGE_SHIFT, rights: 5, flags: 0x12, file: 1, offset: 0 };
    let data = Change::Map {
        at: DATA,
        len: 16 << PAGE_SHIFT,
        rights: 3,
        flags: 0x12,
        file: 1,
        offset: TEXT_PAGES << PAGE_SHIFT,
    };
    for change in [anonymous(STACK, STACK_PAGES), anonymous(HEAP, HEAP_PAGES), text, data] {
        trace.to.put(Record::Vma(change))?;
    }
    let mut random = fastrand::Rng::with_seed(1);
    let mut grown = 1;
    for call in 0..calls {
        // Some functions are called everywhere, some in one pass only.
        let functions = TEXT_PAGES / FUNCTION;
        let function = match random.u64(..4) {
            0 => random.u64(..16),
            1 => random.u64(..functions),
            _ => (call / PASS * 37 + random.u64(..64)) % functions,
        };
        let frame = (STACK >> PAGE_SHIFT) + STACK_PAGES - 1 - random.u64(..4);
        trace.access(frame, Access::Write)?;
        for step in 0..8 {
            trace.access((TEXT >> PAGE_SHIFT) + function * FUNCTION + step / 4 % FUNCTION, Access::Execute)?;
            // Access a recent allocation, or, one time in eight, any.
            let back = if random.u64(..8) == 0 { random.u64(..grown) } else { random.u64(..grown.min(24)) };
            trace.access((HEAP >> PAGE_SHIFT) + grown - 1 - back, Access::Read)?;
        }
        if random.u64(..6) == 0 {
            grown = (grown + 1).min(HEAP_PAGES);
            trace.access((HEAP >> PAGE_SHIFT) + grown - 1, Access::Write)?;
        }
        trace.access(
            (DATA >> PAGE_SHIFT) + random.u64(..16),
            if call % 16 == 0 { Access::Write } else { Access::Read },
        )?;
        trace.access(frame, Access::Read)?;
    }
    let totals = trace.totals;
    trace.to.put(Record::End(totals))?;
    zstd::encode_all(&trace.to.into_inner()[..], 3)
}

struct Trace {
    to: Writer<Vec<u8>>,
    filter: Filter,
    totals: Totals,
}

impl Trace {
    fn access(&mut self, page: u64, access: Access) -> io::Result<()> {
        *match access {
            Access::Execute => &mut self.totals.instructions,
            Access::Read => &mut self.totals.loads,
            Access::Write => &mut self.totals.stores,
        } += 1;
        self.filter.access(page, access).map_or(Ok(()), |record| self.to.put(record))
    }
}
