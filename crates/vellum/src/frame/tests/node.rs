//! Checks which node allocations come from and which node freed frames return to.

use super::*;

/// Boots adjacent regions of three nodes, the middle one in two parts. CPU 0 is on node 2, CPU 1 on
/// node 0, and no CPU on node 1.
fn three_nodes(options: BootOptions, test: impl Fn(&Host, &Frames<'_, Host>)) {
    let regions = [(16, 3001, true), (3017, 700, true), (3717, 2500, false), (9000, 3001, true)];
    let host = Host::new(&regions, 2).with_nodes(&[0, 1, 1, 2], &[2, 0]);
    test(&host, &Frames::boot(&host, options).unwrap());
}

/// Returns whether a frame is in a free block, of a buddy allocator or of a per-CPU cache.
fn is_free(frames: &Frames<'_, Host>, pfn: Pfn) -> bool {
    let block = frames.block(pfn);
    block.is_some_and(|(.., state)| matches!(state.kind(), FrameKind::Free | FrameKind::Cached))
}

/// A CPU allocates from its own node down to the low watermark, then from the other nodes, nearest
/// first. Then memory is short, and the CPU allocates from the nodes in the same order down to
/// their min watermarks.
#[test]
fn allocations_fall_back_to_the_nearest_node_above_its_watermark() {
    let options = BootOptions { watermarks: 900, min_free: 90, ..Default::default() };
    three_nodes(options, |host, frames| {
        for (cpu, order) in [(0, [2, 1, 0]), (1, [0, 1, 2])] {
            host.on_cpu(cpu);
            let mut held = Vec::new();
            let mut seen: Vec<(usize, bool)> = Vec::new();
            while let Ok(pfn) = frames.alloc(0, false, Use::Folio) {
                held.push(pfn);
                let now = (frames.node_of(pfn), frames.short.load(core::sync::atomic::Ordering::Relaxed));
                if !seen.contains(&now) {
                    seen.push(now);
                }
            }
            let spared = order.map(|node| (node, false));
            let rest = order.map(|node| (node, true));
            assert_eq!(seen, [spared, rest].concat(), "CPU {cpu}");
            (0..3).for_each(|node| {
                assert_eq!(
                    frames.free_on(node),
                    frames.watermarks_on(node).min,
                    "node {node} allocates down to its min watermark"
                )
            });
            assert_eq!((0..3).map(|node| frames.watermarks_on(node).min).sum::<u64>(), frames.min_free());
            assert_eq!(
                core::iter::from_fn(|| frames.alloc_reserve(0, Use::Folio).ok().map(|pfn| held.push(pfn))).count(),
                90
            );
            // SAFETY: this test allocated the frames, and no other code uses them.
            held.iter().for_each(|pfn| unsafe { frames.free(*pfn, 1, false, Use::Folio) });
            assert_eq!(frames.shortage(), 0, "a shortage remains although all memory is free");
        }
    });
}

/// `shortage_on` returns how many frames a node lacks to its own high watermark, until every node
/// has reached its high watermark.
#[test]
fn shortage_is_reported_per_node() {
    let options = BootOptions { watermarks: 900, ..Default::default() };
    three_nodes(options, |host, frames| {
        host.on_cpu(0);
        let mut held = Vec::new();
        while frames.shortage() == 0 {
            held.push(frames.alloc(0, false, Use::Folio).unwrap());
        }
        let all: u64 = (0..3).map(|node| frames.shortage_on(node)).sum();
        assert_eq!(frames.shortage(), all);
        for node in 0..3 {
            let high = frames.watermarks_on(node).high;
            assert_eq!(frames.shortage_on(node), high - frames.free_on(node));
            while frames.shortage_on(node) > 0 {
                let at = held.iter().position(|pfn| frames.node_of(*pfn) == node).unwrap();
                // SAFETY: this test allocated the frames, and no other code uses them.
                unsafe { frames.free(held.swap_remove(at), 1, false, Use::Folio) };
            }
            assert_eq!(frames.free_on(node), high);
            assert_eq!(frames.shortage() > 0, node < 2);
        }
    });
}

/// Freed frames return to their own node, whichever CPU frees them and in whatever parts, and no
/// block lies on two nodes.
#[test]
fn freed_frames_return_to_their_own_node() {
    three_nodes(BootOptions::default(), |host, frames| {
        let totals = [0, 1, 2].map(|node| frames.total_on(node));
        let mut held: Vec<(Pfn, u32)> = Vec::new();
        let mut dice = Dice(11);
        for round in 0..4000 {
            host.on_cpu(dice.roll(2) as usize);
            let usage = if dice.roll(4) == 0 { Use::Kernel } else { Use::Folio };
            let order = dice.roll(12) as u8;
            if dice.roll(2) == 0
                && let Ok(pfn) = frames.alloc(order, false, usage)
            {
                assert_eq!(frames.node_of(pfn), frames.node_of(pfn.add((1 << order) - 1)));
                held.push((pfn, 1 << order));
            } else if !held.is_empty() {
                let (pfn, count) = held.swap_remove(dice.roll(held.len() as u64) as usize);
                let part = 1 + dice.roll(count as u64) as u32;
                // SAFETY: this test allocated the frames, and no other code uses them.
                unsafe { frames.free(pfn, part, false, usage) };
                if part < count {
                    held.push((pfn.add(part), count - part));
                }
            }
            if round % 200 == 0 {
                let mut counted = [0; 3];
                (0..13_000)
                    .map(Pfn)
                    .filter(|pfn| is_free(frames, *pfn))
                    .for_each(|pfn| counted[frames.node_of(pfn)] += 1);
                assert_eq!([0, 1, 2].map(|node| frames.free_on(node)), counted, "round {round}");
            }
        }
        held.sort();
        // Contiguous frames are freed as one range, whatever their blocks were.
        for contiguous in held.chunk_by(|a, b| a.0.add(a.1) == b.0) {
            // SAFETY: this test allocated the frames, and no other code uses them.
            unsafe { frames.free(contiguous[0].0, contiguous.iter().map(|range| range.1).sum(), false, Use::Folio) };
        }
        assert_eq!([0, 1, 2].map(|node| frames.free_on(node)), totals);
        frames.drain();
        for pfn in (0..13_000).map(Pfn).filter(|pfn| is_free(frames, *pfn)) {
            let (first, _, state) = frames.block(pfn).unwrap();
            let last = first.add((1 << state.order()) - 1);
            assert_eq!(frames.node_of(first), frames.node_of(last), "{pfn:?}");
        }
    });
}

/// A region or a CPU on a node at or above the maximum is a boot error. A CPU on a node without
/// memory allocates from the other nodes.
#[test]
fn node_numbers_out_of_range_are_boot_errors() {
    use crate::platform::MAX_NODES;
    let boot = |memory, cpu| {
        let host = Host::new(&[(16, 3000, true)], 1).with_nodes(&[memory], &[cpu]);
        Frames::boot(&host, BootOptions::default()).map(|frames| (frames.nodes(), frames.alloc(0, false, Use::Folio)))
    };
    assert_eq!(boot(MAX_NODES, 0).err(), Some(BootError::BadNode(MAX_NODES)));
    assert_eq!(boot(0, usize::MAX).err(), Some(BootError::BadNode(usize::MAX)));
    assert!(
        matches!(boot(0, MAX_NODES - 1), Ok((MAX_NODES, Ok(_)))),
        "a CPU on a node without memory uses another node's"
    );
}
