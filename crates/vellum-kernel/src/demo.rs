//! What stands in for the engine until it is plugged in: one address space, one page, built by hand in the page
//! fault hook. It proves that the ground holds: a fault at a user address reaches the hook with the right error
//! code, the entry the hook writes is used, read-only memory is read-only for the kernel too, and a flush flushes.

use crate::cpu::user_access;
use crate::paging::{
    PAGE_SIZE, copy_kernel_half, flush_page, flush_user, kernel_root, load_root, phys_to_virt,
};
use crate::println;
use crate::pvh::MemoryMap;
use crate::trap::set_page_fault_hook;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use x86_64::registers::control::Cr3;
use x86_64::structures::idt::PageFaultErrorCode as Code;

const ADDRESS: u64 = 0x1234_5678_9000;
const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const USER: u64 = 4;

/// The next free page. The demo never gives one back.
static NEXT_FRAME: AtomicU64 = AtomicU64::new(0);
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// Reads and then writes a user page that is not there; takes it away, and reads it again.
pub fn page_faults(map: &MemoryMap) -> Result<(), &'static str> {
    let region = map
        .usable()
        .max_by_key(|region| region.size)
        .ok_or("no usable memory")?;
    NEXT_FRAME.store(region.base, Relaxed);
    let root = zeroed_frame();
    // SAFETY: the root is a fresh page, and nothing ever frees it.
    unsafe {
        copy_kernel_half(root);
        load_root(root);
    }
    set_page_fault_hook(resolve);
    let page = ADDRESS as *mut u64;
    // SAFETY: the hook maps the page at each fault, the first time with zeroes, for as long as this root is loaded;
    // nobody else knows of it.
    let read = || user_access(|| unsafe { page.read_volatile() });
    // SAFETY: as above.
    let write = |value| user_access(|| unsafe { page.write_volatile(value) });

    let before = read();
    write(42);
    let after = read();
    let entry = entry_of(ADDRESS);
    // SAFETY: the entry lies in a table of this demo's, and this is the only processor.
    unsafe { entry.write_volatile(entry.read_volatile() & !PRESENT) };
    flush_user();
    let again = read();

    let faults = FAULTS.load(Relaxed);
    println!("read {before}, wrote 42, read {after}, took it away, read {again}: {faults} page faults");
    // SAFETY: the kernel's own root, which lives for ever.
    unsafe { load_root(kernel_root()) };
    match (before, after, again, faults) {
        (0, 42, 42, 3) => Ok(()),
        _ => Err("expected to read 0, 42 and 42, in 3 page faults"),
    }
}

/// Touches user memory as only a bug would.
pub fn stray() -> Result<(), &'static str> {
    set_page_fault_hook(|_, _| panic!("the hook was asked about a stray touch"));
    // SAFETY: none: this is the bug. Nothing is mapped there, so the touch faults, and a fault stops the machine.
    unsafe { (ADDRESS as *mut u64).write_volatile(1) };
    Err("a stray touch of user memory went unnoticed")
}

/// Maps the page read-only at the first fault, makes it writable at the second, and puts it back at the third.
fn resolve(address: u64, code: Code) -> bool {
    println!("page fault at {address:#x}: {code:?}");
    let entry = entry_of(address);
    // SAFETY: the entry lies in a table of this demo's, and this is the only processor.
    let old = unsafe { entry.read_volatile() };
    let new = match FAULTS.fetch_add(1, Relaxed) {
        0 if code == Code::empty() => zeroed_frame() | PRESENT | USER,
        1 if code == Code::PROTECTION_VIOLATION | Code::CAUSED_BY_WRITE => old | WRITABLE,
        2 if code == Code::empty() => old | PRESENT,
        _ => return false,
    };
    // SAFETY: as above; the page it maps is a fresh one.
    unsafe { entry.write_volatile(new) };
    flush_page(address);
    true
}

/// The lowest-level entry for `address` in the tables in use, which are completed as needed.
fn entry_of(address: u64) -> *mut u64 {
    let mut table = Cr3::read().0.start_address().as_u64();
    for shift in [39, 30, 21] {
        let entry = entry_in(table, address, shift);
        // SAFETY: the entry lies in a table of this demo's, and this is the only processor.
        unsafe {
            if entry.read_volatile() & PRESENT == 0 {
                entry.write_volatile(zeroed_frame() | PRESENT | WRITABLE | USER);
            }
            table = entry.read_volatile() & 0x000f_ffff_ffff_f000;
        }
    }
    entry_in(table, address, 12)
}

fn entry_in(table: u64, address: u64, shift: u32) -> *mut u64 {
    phys_to_virt::<u64>(table).wrapping_add((address >> shift & 511) as usize)
}

fn zeroed_frame() -> u64 {
    let frame = NEXT_FRAME.fetch_add(PAGE_SIZE, Relaxed);
    // SAFETY: a page of usable memory, of which the largest region has more than the few taken here, handed out
    // once.
    unsafe { phys_to_virt::<u8>(frame).write_bytes(0, PAGE_SIZE as usize) };
    frame
}
