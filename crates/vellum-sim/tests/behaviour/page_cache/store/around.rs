//! How much of a file a fault reads: by what is in memory beside it, and by advice.

use vellum::page_cache::{Changes, Object};
use vellum::space::{Advise, FaultError, MapFlags};
use vellum::vma::{Expected, Prot};
use vellum_sim::{Fault, Silicon, Strict};

use super::fixture::{File, RW, with_shared_file};
use crate::fixtures::bench::{BASE, Space, in_every_format};

in_every_format! {
    faults_in_a_row_read_more_each_time => streams,
    faults_that_lie_apart_read_a_block_each => apart,
    advice_decides_how_much_a_fault_reads => advised,
    text_is_read_in_the_largest_blocks => text,
    madv_willneed_reads_a_file => needed,
}

/// A mapping of a file of a number of pages, at [`BASE`].
struct Long<'b, 'm, A: Silicon> {
    file: &'b File<'b, 'm, A>,
    space: Space<'m, A>,
    object: Object<'m, Strict<A>>,
    pages: u64,
}

impl<'b, 'm, A: Silicon> Long<'b, 'm, A> {
    fn new(file: &'b File<'b, 'm, A>, pages: u64) -> Self {
        let on = file.on;
        on.machine.policy().set_file_orders(u32::MAX);
        let object = Object::with_store(on.machine, &on.arch, on.memcg, 1, pages * on.page, Changes::ToStore).unwrap();
        let space = on.space();
        let flags = MapFlags::FIXED | MapFlags::SHARED;
        let request = vellum::space::MapRequest { addr: BASE, len: pages * on.page, prot: RW, flags };
        space.map_object(request, &object, 0).unwrap();
        Long { file, space, object, pages }
    }

    /// Loads a word of each of the pages, in this order. Returns how many pages each read had that
    /// was necessary.
    fn touch(&self, pages: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let (on, files) = (self.file.on, self.file.files);
        let mut reads = Vec::new();
        for page in pages {
            loop {
                match on.cpu.enter(&self.space).load_u64(BASE + page * on.page) {
                    Ok(word) => break assert_eq!(word, files.word(1, page * on.page), "page {page}"),
                    Err(Fault::Handler(FaultError::Pending(_))) => {
                        let done = files.finish_any(on.machine).expect("a read is under way");
                        assert_eq!(files.under_way(), 0, "one read a fault");
                        reads.push(done.done);
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
        reads
    }

    fn advise(&self, reads: Expected) {
        self.space.advise(BASE, self.pages * self.file.on.page, Advise::Reads(reads)).unwrap();
    }
}

/// Faults on one page after another, in either direction, need a number of reads that grows with
/// the logarithm of the pages until a read has 512 KiB, and read no page twice. So it is where
/// memory has small folios only.
fn streams<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let pages = 250;
        for (downwards, orders) in [(false, u32::MAX), (true, u32::MAX), (false, 0), (true, 0)] {
            let long = Long::new(&file, pages);
            file.on.machine.policy().set_file_orders(orders);
            let reads = match downwards {
                false => long.touch(0..pages),
                true => long.touch((0..pages).rev()),
            };
            assert_eq!(reads.iter().sum::<u64>(), pages, "{reads:?}");
            let most = if orders == 0 { 11 } else { 8 };
            assert!(reads.len() <= most && reads.iter().max() >= Some(&32), "{reads:?}");
        }
    });
}

/// Faults that do not continue one another read 64 KiB each, or what is missing of it.
fn apart<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let long = Long::new(&file, 256);
        assert_eq!(long.touch([100, 20, 37, 8, 200, 116, 215, 47]), [16; 7], "page 47 is in memory");
        assert_eq!(long.touch([49]), [16], "in the middle of its block");
        assert_eq!(long.touch([64]), [32], "at the edge of a block, beside pages in memory");
    });
}

/// Where random reads are expected, a fault reads its page alone; where a stream is, up to 512 KiB
/// from it on; and after `MADV_NORMAL` as much as without advice.
fn advised<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let long = Long::new(&file, 256);
        long.advise(Expected::Random);
        assert_eq!(long.touch([3, 4, 100, 128]), [1; 4]);
        long.advise(Expected::Sequential);
        assert_eq!(long.touch([40, 150]), [60, 106], "up to page 100, and up to the end");
        long.advise(Expected::Unknown);
        assert_eq!(long.touch([24]), [16]);
    });
}

/// In a mapping that a program may execute, a fault reads all of the 512 KiB around it.
fn text<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let long = Long::new(&file, 256);
        long.space.protect(BASE, 256 * file.on.page, Prot::READ | Prot::EXEC).unwrap();
        assert_eq!(long.touch([100, 5, 127, 200, 128]), [128, 128]);
    });
}

/// `MADV_WILLNEED` begins to read what is missing in the range, waits for nothing, and faults there
/// need no read any more.
fn needed<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let long = Long::new(&file, 200);
        let page = file.on.page;
        long.touch([50]);
        long.space.advise(BASE + 10 * page, 150 * page, Advise::WillNeed).unwrap();
        assert!(file.files.under_way() > 0);
        while file.files.finish_any(file.on.machine).is_some() {}
        assert_eq!(long.object.resident(), 150);
        assert_eq!(long.touch(10..160), [0; 0]);
    });
}
