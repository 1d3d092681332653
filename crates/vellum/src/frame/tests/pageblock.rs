//! Compares the bitmaps of a pageblock with a list of its free frames, and checks which of several
//! pageblocks and pieces an allocation takes.

use super::super::pageblock::{Pageblock, PageblockClass, Piece};
use super::*;

/// The number of frames of a pageblock.
const FRAMES: u32 = 1 << HUGE_ORDER;

/// The frames of a pageblock: `None` if in use, and whether it is known to be zero if free.
type Model = [Option<bool>; FRAMES as usize];

/// Returns the frames of a block.
fn block(model: &Model, at: u32, order: u8) -> &[Option<bool>] {
    &model[at as usize..(at + (1 << order)) as usize]
}

/// Returns the aligned free blocks that are no part of a larger one, in ascending order.
fn pieces(model: &Model) -> Vec<Piece> {
    let (mut pieces, mut at) = (Vec::new(), 0);
    while at < FRAMES {
        let is_free = |order: &u8| at % (1 << order) == 0 && block(model, at, *order).iter().all(Option::is_some);
        let order = (0..HUGE_ORDER).rev().find(is_free);
        pieces.extend(order.map(|order| Piece { at, order }));
        at += order.map_or(1, |order| 1 << order);
    }
    pieces
}

/// Returns whether all frames of a free block are known to be zero.
fn is_known_zero(model: &Model, at: u32, order: u8) -> bool {
    block(model, at, order).iter().all(|frame| *frame == Some(true))
}

/// Removes some pieces of one word, and compares the bits with those of the first pieces of the
/// model that qualify.
fn remove_pieces(pageblock: &Pageblock, model: &mut Model, dice: &mut Dice) {
    let (at, order, zero) = (dice.roll(FRAMES.into()) as u32, dice.roll(7) as u8, dice.roll(2) == 0);
    let (word, limit) = (at / 64 * 64, dice.roll(5) as usize);
    let of_word = |piece: &Piece| piece.order == order && order < 6 && piece.at / 64 * 64 == word;
    let qualifies = |piece: &Piece| of_word(piece) && is_known_zero(model, piece.at, order) == zero;
    let expected: Vec<u32> = pieces(model).iter().filter(|piece| qualifies(piece)).map(|piece| piece.at).collect();
    let expected = &expected[..expected.len().min(limit)];
    let removed = pageblock.remove_pieces(at, order, zero, limit as u32);
    assert_eq!(removed, expected.iter().map(|at| 1 << (at - word)).sum::<u64>(), "order {order}, zero {zero}");
    expected.iter().for_each(|at| model[*at as usize..][..1 << order].fill(None));
}

/// Whatever blocks are inserted and removed, a pageblock has the pieces, the class and the counts
/// that its free frames give it.
#[test]
fn a_pageblock_has_the_pieces_that_its_free_frames_form() {
    // SAFETY: a pageblock consists of atomics, for which zeros are a valid value.
    let pageblock: Pageblock = unsafe { core::mem::zeroed() };
    let (mut model, mut dice) = ([None; FRAMES as usize], Dice(3));
    for _ in 0..4000 {
        let (order, zero) = (dice.roll(HUGE_ORDER.into()) as u8, dice.roll(2) == 0);
        let at = dice.roll(FRAMES.into()) as u32 >> order << order;
        if block(&model, at, order).iter().all(Option::is_none) && dice.roll(3) > 0 {
            model[at as usize..][..1 << order].fill(Some(zero));
            pageblock.insert_block(at, order, zero);
        } else if let Some(piece) = pageblock.find(order, zero) {
            let smallest = pieces(&model).iter().map(|piece| piece.order).filter(|size| *size >= order).min();
            assert_eq!(Some(piece.order), smallest);
            let equal: Vec<Piece> = pieces(&model).into_iter().filter(|other| other.order == piece.order).collect();
            let preferred = equal.iter().find(|piece| is_known_zero(&model, piece.at, order) == zero);
            assert_eq!(piece, *preferred.unwrap_or(&equal[0]), "order {order}, zero {zero}");
            assert_eq!(pageblock.remove(piece.at, order), is_known_zero(&model, piece.at, order));
            model[piece.at as usize..][..1 << order].fill(None);
        } else {
            assert!(pieces(&model).iter().all(|piece| piece.order < order));
        }
        if dice.roll(8) == 0 {
            remove_pieces(&pageblock, &mut model, &mut dice);
        }
        if model.iter().all(Option::is_some) {
            pageblock.remove(0, HUGE_ORDER);
            model.fill(None);
        }
        let (mut counts, mut counted) = ([0; HUGE_ORDER as usize], [0; HUGE_ORDER as usize]);
        pieces(&model).iter().for_each(|piece| counts[usize::from(piece.order)] += 1);
        pageblock.count_pieces(&mut counted);
        assert_eq!(counted, counts);
        let has_zero = model.contains(&Some(true));
        let largest = pieces(&model).iter().map(|piece| piece.order).max();
        assert_eq!(
            pageblock.computed_class(),
            largest.map(|order| PageblockClass { order, has_zero, usage: Use::Folio })
        );
        let at = dice.roll(FRAMES.into()) as u32;
        let found = pieces(&model).into_iter().find(|piece| (piece.at..piece.at + (1 << piece.order)).contains(&at));
        assert_eq!(pageblock.piece(at), found.map(|piece| (piece, is_known_zero(&model, piece.at, piece.order))));
    }
}

/// Boots one CPU with four free blocks of 2 MiB, and returns the frames. They are allocated
/// straight from the buddy allocator.
fn four_pageblocks(test: impl Fn(&Frames<'_, Host>, &dyn Fn(u8, bool) -> Pfn)) {
    // The boot-time structures have less than 1024 frames, the frames up to the next pageblock
    // included.
    let host = Host::new(&[(1024, 1024 + 4 * FRAMES as u64, true)], 1);
    let frames = Frames::boot(&host, BootOptions { watermarks: 1, ..Default::default() }).unwrap();
    // Takes what is left of the pageblock of the boot-time structures.
    while frames.free_blocks_on(0)[..usize::from(HUGE_ORDER)].iter().any(|count| *count > 0) {
        frames.nodes[0].buddy.lock_irq(&host).alloc(&frames, 0, true, Use::Folio).unwrap();
    }
    let alloc =
        |order, zero| frames.nodes[0].buddy.lock_irq(&host).alloc(&frames, order, zero, Use::Folio).unwrap().pfn;
    test(&frames, &alloc);
}

/// Frees frames straight to the buddy allocator.
fn free(frames: &Frames<'_, Host>, pfn: Pfn, count: u32, zero: bool) {
    frames.nodes[0].buddy.lock_irq(frames.platform()).free_ranges(frames, &[(pfn, count)], zero);
}

/// Of a block of 2 MiB the lowest part is used first: a series of requests gets ascending, adjacent
/// blocks, and a request for a larger block the next one that is aligned.
#[test]
fn requests_get_ascending_blocks_of_a_pageblock() {
    four_pageblocks(|frames, alloc| {
        let first = alloc(0, true);
        assert!(first.is_aligned(HUGE_ORDER));
        (1..7).for_each(|at| assert_eq!(alloc(0, true), first.add(at)));
        assert_eq!(alloc(4, true), first.add(16));
        (7..16).chain(32..40).for_each(|at| assert_eq!(alloc(0, true), first.add(at)));
        assert_eq!(alloc(8, true), first.add(256));
        assert_eq!(frames.free_blocks_on(0)[..9], [0, 0, 0, 1, 1, 0, 1, 1, 0]);
    });
}

/// A request takes frames of the pageblock whose largest free block is as small as possible, and of
/// that pageblock the smallest sufficient piece.
#[test]
fn requests_spare_pageblocks_with_large_blocks() {
    four_pageblocks(|frames, alloc| {
        let [small, large] = [(), ()].map(|()| alloc(HUGE_ORDER, true));
        free(frames, small.add(100), 1, true);
        free(frames, small.add(200), 4, true);
        free(frames, large.add(32), 32, true);
        free(frames, large.add(3), 1, true);
        assert_eq!([alloc(0, true), alloc(0, true), alloc(1, true)], [100, 200, 202].map(|at| small.add(at)));
        assert_eq!(alloc(0, true), small.add(201), "the pageblock has pieces of one frame only");
        assert_eq!([alloc(0, true), alloc(0, true)], [3, 32].map(|at| large.add(at)));
    });
}

/// Among pageblocks and pieces of equal size, a request takes zero frames if it prefers them, and
/// other frames if not (INV-10). The frames of a piece may differ.
#[test]
fn requests_prefer_zero_frames_or_others() {
    four_pageblocks(|frames, alloc| {
        let [mixed, other] = [(), ()].map(|()| alloc(HUGE_ORDER, true));
        for (at, zero) in [(100, false), (110, true), (120, true), (130, false)] {
            free(frames, mixed.add(at), 1, zero);
        }
        for at in [10, 20, 30] {
            free(frames, other.add(at), 1, false);
        }
        assert_eq!(alloc(0, true), mixed.add(110));
        assert_eq!(alloc(0, false), other.add(10));
        assert_eq!([alloc(0, true), alloc(0, true)], [120, 100].map(|at| mixed.add(at)), "no zero frame is left");
    });
}

/// A CPU's cache takes several scattered frames at once: those of one word, ascending, and then
/// those of other words. They are allocated in that order. A pageblock of which all are taken is on
/// no list.
#[test]
fn a_cache_is_refilled_with_the_scattered_frames_of_a_word() {
    four_pageblocks(|frames, alloc| {
        let [first, other] = [(); 2].map(|()| alloc(HUGE_ORDER, true));
        let rest = || {
            frames.nodes[0].buddy.lock_irq(frames.platform()).alloc_below_floor(frames, HUGE_ORDER, true, Use::Folio)
        };
        while rest().is_some() {}
        free(frames, other.add(20), 1, false);
        [70, 3, 10, 40, 90].iter().for_each(|at| free(frames, first.add(*at), 1, true));
        let next = || frames.alloc(0, true, Use::Folio).unwrap();
        assert_eq!(next(), first.add(3));
        // One frame stays free, for the low watermark.
        assert_eq!(frames.nodes[0].buddy.lock_irq(frames.platform()).frames(), 1);
        assert_eq!([(); 4].map(|()| next()), [10, 40, 70, 90].map(|at| first.add(at)));
        assert!(is_zero(frames, first.add(90), 1));
        assert_eq!(next(), other.add(20), "the last frame is allocated when memory is short");
    });
}

/// Frames that can't be moved are taken from one pageblock while it has any, and folios from others
/// while these have any.
#[test]
fn each_use_has_pageblocks_of_its_own() {
    four_pageblocks(|frames, alloc| {
        let [first, other] = [(); 2].map(|()| alloc(HUGE_ORDER, true));
        let take = |usage| {
            let mut buddy = frames.nodes[0].buddy.lock_irq(frames.platform());
            buddy.alloc_below_floor(frames, 0, false, usage).unwrap().pfn.align_down(HUGE_ORDER)
        };
        let rest = || {
            frames.nodes[0].buddy.lock_irq(frames.platform()).alloc_below_floor(frames, HUGE_ORDER, true, Use::Folio)
        };
        while rest().is_some() {}
        (0..200).step_by(10).for_each(|at| free(frames, first.add(at), 1, false));
        (0..200).step_by(10).for_each(|at| free(frames, other.add(at), 2, false));
        let taken = [Use::Kernel, Use::Folio, Use::Kernel, Use::Folio].repeat(10).into_iter().map(take);
        assert_eq!(taken.collect::<Vec<_>>(), [other, first].repeat(20), "the larger blocks are in `other`");
        assert_eq!([take(Use::Folio), take(Use::Kernel)], [other; 2], "`first` has no frame left");
    });
}

/// Where a region ends within a pageblock, frames of other nodes behind it in the same pageblock
/// are never allocated; where it ends with a pageblock, the first frame of the other node is not.
#[test]
fn a_pageblock_has_free_frames_of_one_node_only() {
    let pageblock = u64::from(FRAMES);
    let regions = [
        (16, 10 * pageblock - 10, true),
        (10 * pageblock + 50, 30, true),
        (10 * pageblock + 100, 3 * pageblock - 100, true),
        (13 * pageblock, pageblock, true),
    ];
    let host = Host::new(&regions, 1).with_nodes(&[0, 1, 1, 0], &[0]);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    assert_eq!([0, 1].map(|node| frames.free_on(node)), [0, 1].map(|node| frames.total_on(node)));
    assert_eq!(frames.total_on(1), 2 * pageblock, "node 1 begins with the first pageblock of its own");
    let is_free =
        |pfn: u64| matches!(frames.block(Pfn(pfn as u32)), Some((.., state)) if state.kind() == FrameKind::Free);
    assert_eq!(
        [11 * pageblock - 1, 11 * pageblock, 13 * pageblock - 1, 13 * pageblock, 13 * pageblock + 1].map(is_free),
        [false, true, true, false, true]
    );
    let counts = frames.free_blocks_on(1);
    assert_eq!((0..).zip(counts).map(|(order, count)| count << order).sum::<u64>(), 2 * pageblock);
}
