//! Tests the choice among several devices, and the detaching of devices.

use std::sync::Mutex;
use std::vec::Vec;

use crate::addr::Pfn;
use crate::frame::{BootOptions, Frames, HUGE_ORDER};
use crate::swap::{
    AttachError, DetachError, MAX_SWAP_DEVICES, NoSlots, ReadError, Slots, SwapDevice, SwapRun, Swaps, Unreadable,
    WriteError,
};
use crate::testing::Host;

/// A device that records its calls.
#[derive(Default)]
struct RecordingDevice {
    written: Mutex<Vec<Slots>>,
    forgotten: Mutex<Vec<Slots>>,
}

impl SwapDevice<Host> for RecordingDevice {
    unsafe fn write(&self, _: &Frames<'_, Host>, slots: Slots, _: Pfn) -> Result<(), WriteError> {
        self.written.lock().unwrap().push(slots);
        Ok(())
    }

    unsafe fn read(&self, _: &Frames<'_, Host>, slots: Slots, _: Pfn) -> Result<(), ReadError> {
        Err(ReadError { slot: slots.first, reason: Unreadable::Failed })
    }

    unsafe fn forget(&self, _: &Frames<'_, Host>, slots: Slots) {
        self.forgotten.lock().unwrap().push(slots);
    }
}

fn with_swaps<const N: usize>(
    test: impl FnOnce(&Host, &Frames<'_, Host>, &Swaps<Host>, [u8; N]),
    slots: [u32; N],
    priorities: [i16; N],
) {
    let host = Host::with_frames(2000, 2);
    let devices: [RecordingDevice; N] = std::array::from_fn(|_| RecordingDevice::default());
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let swaps = Swaps::new(&frames).unwrap();
    let before = frames.free_frames();
    // SAFETY: each device is attached once.
    let ids = std::array::from_fn(|i| unsafe { swaps.attach(&frames, &devices[i], slots[i], priorities[i]).unwrap() });
    test(&host, &frames, &swaps, ids);
    for id in ids {
        swaps.close(&host, id).unwrap();
        swaps.detach(&frames, id).unwrap();
    }
    assert_eq!(frames.free_frames(), before, "the devices did not free all their memory");
    for device in &devices {
        let slots = |noted: &Mutex<Vec<Slots>>| noted.lock().unwrap().iter().map(|slots| slots.count).sum::<u32>();
        assert!(slots(&device.written) <= slots(&device.forgotten), "slots were written and never forgotten");
    }
}

/// Releases every run.
///
/// # Safety
/// As for [`Swaps::release`].
unsafe fn release_all(frames: &Frames<'_, Host>, swaps: &Swaps<Host>, runs: Vec<SwapRun>) {
    // SAFETY: the caller owns the references to these runs (this contract).
    runs.into_iter().for_each(|run| unsafe { swaps.release(frames, run) });
}

/// The device of the highest priority is used first. Devices of one priority are used in turn, and
/// a device of lower priority when they are full.
#[test]
fn devices_are_used_by_priority_and_in_turn() {
    let test = |host: &Host, frames: &Frames<'_, Host>, swaps: &Swaps<Host>, [low, a, b]: [u8; 3]| {
        let mut runs = Vec::new();
        let mut used = [0; 3];
        for _ in 0..1024 / 16 {
            let run = swaps.allocate(host, 4).unwrap();
            let [ours, other] = if run.device == a { [a, b] } else { [b, a] };
            used[ours as usize] += 1;
            assert!(used[ours as usize] - used[other as usize] <= 1, "{used:?}");
            runs.push(run);
        }
        assert_eq!(used[low as usize], 0, "the lowest priority is used while others have room");
        while let Ok(run) = swaps.allocate(host, HUGE_ORDER) {
            assert_eq!(run.device, low);
            runs.push(run);
        }
        assert_eq!(swaps.allocate(host, HUGE_ORDER), Err(NoSlots::Full));
        let last = runs.pop().unwrap();
        let half = SwapRun { slots: Slots { count: 256, ..last.slots }, ..last };
        // SAFETY: the test owns the references to the slots of this run.
        unsafe { swaps.release(frames, half) };
        assert_eq!(swaps.allocate(host, HUGE_ORDER), Err(NoSlots::Scattered));
        assert_eq!(swaps.usage(host, low).unwrap().used, swaps.usage(host, low).unwrap().slots - 256);
        runs.push(SwapRun { slots: Slots { first: half.slots.first + 256, count: 256 }, ..last });
        // SAFETY: the test owns the references to the slots of these runs.
        unsafe { release_all(frames, swaps, runs) };
    };
    with_swaps(test, [1024, 512, 512], [-2, 7, 7]);
}

/// A closed device gets no more pages, and is detached only when none of its slots is in use.
#[test]
fn a_device_is_detached_only_when_unused() {
    let test = |host: &Host, frames: &Frames<'_, Host>, swaps: &Swaps<Host>, [id, other]: [u8; 2]| {
        assert_eq!(swaps.detach(frames, id), Err(DetachError::Open));
        assert_eq!(swaps.detach(frames, 9), Err(DetachError::Unknown(9)));
        let run = swaps.allocate(host, 2).unwrap();
        assert_eq!(run.device, id);
        // SAFETY: the test owns the references to the slots of this run, and the device accesses no
        // frame.
        unsafe {
            swaps.duplicate(host, run).unwrap();
            swaps.write(frames, run, Pfn(1)).unwrap();
        }
        swaps.close(host, id).unwrap();
        let elsewhere = swaps.allocate(host, 2).unwrap();
        assert_eq!(elsewhere.device, other);
        for references in [2, 1] {
            assert_eq!(swaps.detach(frames, id), Err(DetachError::InUse(4)));
            // SAFETY: the test owns the references to the slots of this run.
            unsafe {
                assert_eq!(swaps.max_references(host, run), references);
                swaps.release(frames, run);
            }
        }
        swaps.close(host, other).unwrap();
        assert_eq!(swaps.allocate(host, 2), Err(NoSlots::Full), "a slot of a closed device was allocated");
        swaps.open(host, other).unwrap();
        // SAFETY: the test owns the references to the slots of this run.
        unsafe { swaps.release(frames, elsewhere) };
    };
    with_swaps(test, [512, 512], [1, 0]);
}

/// As many devices can be attached as swap PTEs can name, and a detached device's number is reused.
#[test]
fn a_swap_pte_can_name_every_device() {
    let host = Host::with_frames(1000, 1);
    let device = RecordingDevice::default();
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let swaps = Swaps::new(&frames).unwrap();
    // SAFETY: the device does nothing, and may be attached any number of times.
    let attach = || unsafe { swaps.attach(&frames, &device, 100, 0) };
    let ids: Vec<u8> = (0..MAX_SWAP_DEVICES).map(|_| attach().unwrap()).collect();
    assert_eq!(ids, (0..MAX_SWAP_DEVICES as u8).collect::<Vec<_>>());
    let before = frames.free_frames();
    assert_eq!(attach(), Err(AttachError::TooMany));
    assert_eq!(frames.free_frames(), before);
    swaps.close(&host, 5).unwrap();
    swaps.detach(&frames, 5).unwrap();
    assert_eq!(attach(), Ok(5));
}
