//! Driver of disks: virtio's block device on PCI (`virtio-blk-pci`), through the crate
//! `virtio-drivers`.
//!
//! Up to [`MOST`] requests are under way at a time, each between contiguous sectors and contiguous
//! memory. A request allocates nothing on the heap: pageout must not wait for memory.

use super::{Begun, BlockDevice, Direction, Ticket, Transfer};
use crate::arch::serial::println;
use crate::arch::{irq, pci};
use crate::mem::virtio::{self, Dma};
use crate::mem::vmalloc;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hint::spin_loop;
use core::slice;
use spin::Mutex;
use vellum::addr::FRAME_SIZE;
use vellum_kernel::sectors::{Part, SECTOR, parts};
use virtio_drivers::Error;
use virtio_drivers::device::blk::{BlkReq, BlkResp, SECTOR_SIZE, VirtIOBlk};
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::PciTransport;

const _: () = assert!(SECTOR == SECTOR_SIZE);

/// The number of requests under way: the crate's queue has 16 descriptors, of which one takes
/// three.
const MOST: usize = 5;
/// The number of these for which CPUs poll, and also of those whose end the storage task waits for:
/// one place at least is for each kind. A CPU that polls can't wait for the task, which may need
/// this CPU; and the task waits for no stream of transfers that are polled for.
const MOST_OF_A_KIND: usize = MOST - 1;

/// A disk.
pub struct Disk {
    size: u64,
    requests: Mutex<Requests>,
}

/// The requests of a disk.
struct Requests {
    /// `None` once the device did what the specification forbids.
    driver: Option<VirtIOBlk<Dma, PciTransport>>,
    /// Places for requests. Their addresses stay the same, as the device writes to them.
    places: Box<[Request]>,
    /// The number of CPUs that wait until no request is under way: none begins meanwhile.
    flushing: usize,
}

/// A place for a request.
struct Request {
    state: State,
    /// A CPU polls for its end.
    is_polled: bool,
    /// The driver's name for the request.
    token: u16,
    transfer: Transfer,
    header: BlkReq,
    status: BlkResp,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    UnderWay,
    /// The device is done; true: it succeeded.
    Ended(bool),
}

impl Disk {
    /// Returns the disk at a slot of the machine's first PCI bus.
    pub fn find(slot: u8) -> Option<Self> {
        let unusable = |error: &dyn core::fmt::Display| println!("disk {slot}: the driver cannot be set up: {error}");
        let transport = virtio::find(slot, DeviceType::Block)?;
        let driver = VirtIOBlk::new(transport).inspect_err(|error| unusable(error)).ok()?;
        let mut places = Vec::new();
        places.try_reserve_exact(MOST).inspect_err(|error| unusable(error)).ok()?;
        places.resize_with(MOST, || Request {
            state: State::Free,
            is_polled: false,
            token: 0,
            transfer: Transfer { direction: Direction::Read, at: 0, memory: core::ptr::null_mut(), len: 0 },
            header: BlkReq::default(),
            status: BlkResp::default(),
        });
        irq::enable_line(pci::line(slot));
        let size = driver.capacity().saturating_mul(SECTOR_SIZE as u64);
        let requests = Requests { driver: Some(driver), places: places.into_boxed_slice(), flushing: 0 };
        Some(Disk { size, requests: Mutex::new(requests) })
    }

    /// Carries out a transfer to or from contiguous memory, and polls for its end. Other CPUs may
    /// begin some meanwhile. Returns whether it succeeded.
    ///
    /// # Safety
    ///
    /// That of [`BlockDevice::transfer`].
    unsafe fn carry_out(&self, transfer: Transfer) -> bool {
        let ticket = loop {
            // SAFETY: this function's contract, as it returns when the transfer has ended.
            match unsafe { self.requests.lock().begin(transfer, true) } {
                Some(Begun::UnderWay(ticket)) => break ticket,
                Some(Begun::Ended(succeeded)) => return succeeded,
                None => spin_loop(),
            }
        };
        loop {
            self.requests.lock().look();
            if let Some(succeeded) = self.ended(&ticket) {
                return succeeded;
            }
            spin_loop();
        }
    }
}

impl Requests {
    /// Begins a transfer, if there is a place for one of its kind.
    ///
    /// # Safety
    ///
    /// That of [`BlockDevice::begin`].
    unsafe fn begin(&mut self, transfer: Transfer, is_polled: bool) -> Option<Begun> {
        self.look();
        let of_its_kind = |place: &&Request| place.state != State::Free && place.is_polled == is_polled;
        if self.flushing > 0 || self.places.iter().filter(of_its_kind).count() == MOST_OF_A_KIND {
            return None;
        }
        let place = self.places.iter().position(|place| place.state == State::Free)?;
        let Some(driver) = &mut self.driver else { return Some(Begun::Ended(false)) };
        let request = &mut self.places[place];
        let Transfer { direction, at, memory, len } = transfer;
        let (sector, header, status) = (at as usize / SECTOR_SIZE, &mut request.header, &mut request.status);
        let begun = match direction {
            // SAFETY: the memory is valid until the transfer has ended (this function's contract),
            // and so are header and status, whose place is not free until then. The driver passes
            // the memory's address on, and does not access it.
            Direction::Read => unsafe {
                driver.read_blocks_nb(sector, header, slice::from_raw_parts_mut(memory, len), status)
            },
            // SAFETY: as above.
            Direction::Write => unsafe {
                driver.write_blocks_nb(sector, header, slice::from_raw_parts(memory, len), status)
            },
        };
        match begun {
            Ok(token) => {
                (request.state, request.is_polled) = (State::UnderWay, is_polled);
                (request.token, request.transfer) = (token, transfer);
                Some(Begun::UnderWay(Ticket(place)))
            }
            Err(Error::QueueFull) => None,
            Err(_) => Some(Begun::Ended(false)),
        }
    }

    /// Takes the requests with which the device is done.
    fn look(&mut self) {
        let Some(driver) = &mut self.driver else { return };
        while let Some(token) = driver.peek_used() {
            let is_it = |place: &&mut Request| place.state == State::UnderWay && place.token == token;
            let ended = self.places.iter_mut().find(is_it).is_some_and(|request| request.end(driver));
            if !ended {
                println!("a disk ended a request that it was not given: it is no longer used");
                // This resets the device, which then no longer accesses memory.
                self.driver = None;
                let under_way = self.places.iter_mut().filter(|place| place.state == State::UnderWay);
                under_way.for_each(|request| request.state = State::Ended(false));
                return;
            }
        }
    }

    fn are_under_way(&self) -> bool {
        self.places.iter().any(|place| place.state == State::UnderWay)
    }
}

impl Request {
    /// Ends a request that is the next with which the device is done. Returns false if the driver
    /// finds that it is not.
    fn end(&mut self, driver: &mut VirtIOBlk<Dma, PciTransport>) -> bool {
        let Transfer { direction, memory, len, .. } = self.transfer;
        let (header, status) = (&self.header, &mut self.status);
        let ended = match direction {
            // SAFETY: these are what `Requests::begin` gave to the driver with this token. The
            // memory is still valid (its contract).
            Direction::Read => unsafe {
                driver.complete_read_blocks(self.token, header, slice::from_raw_parts_mut(memory, len), status)
            },
            // SAFETY: as above.
            Direction::Write => unsafe {
                driver.complete_write_blocks(self.token, header, slice::from_raw_parts(memory, len), status)
            },
        };
        if let Err(Error::WrongToken | Error::NotReady) = ended {
            return false;
        }
        self.state = State::Ended(ended.is_ok());
        true
    }
}

impl BlockDevice for Disk {
    fn size(&self) -> u64 {
        self.size / FRAME_SIZE * FRAME_SIZE
    }

    unsafe fn transfer(&self, transfer: Transfer) -> bool {
        let Transfer { direction, at, memory, len } = transfer;
        parts(len, |start| vmalloc::contiguous(memory.wrapping_add(start))).all(|part| match part {
            Part::Whole(part) => {
                let (at, memory) = (at + part.start as u64, memory.wrapping_add(part.start));
                // SAFETY: the bytes are among the valid ones (this function's contract).
                unsafe { self.carry_out(Transfer { direction, at, memory, len: part.len() }) }
            }
            Part::InPieces(part) => {
                let (mut bytes, memory) = ([0; SECTOR_SIZE], memory.wrapping_add(part.start));
                let (at, len) = (at + part.start as u64, SECTOR_SIZE);
                if direction == Direction::Write {
                    // SAFETY: the part's bytes are among the valid ones (this function's contract),
                    // and no other code knows the copy on the stack.
                    unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(memory, len) };
                }
                // SAFETY: the copy lives until the transfer has ended.
                let succeeded = unsafe { self.carry_out(Transfer { direction, at, memory: bytes.as_mut_ptr(), len }) };
                if direction == Direction::Read {
                    // SAFETY: as above, in the other direction.
                    unsafe { memory.copy_from_nonoverlapping(bytes.as_ptr(), len) };
                }
                succeeded
            }
        })
    }

    unsafe fn begin(&self, transfer: Transfer) -> Option<Begun> {
        // SAFETY: this function's contract.
        unsafe { self.requests.lock().begin(transfer, false) }
    }

    fn look(&self) {
        let mut requests = self.requests.lock();
        if let Some(driver) = &mut requests.driver {
            // The interrupt line falls, so that it can rise again.
            driver.ack_interrupt();
        }
        requests.look();
    }

    fn ended(&self, ticket: &Ticket) -> Option<bool> {
        let place = &mut self.requests.lock().places[ticket.0];
        let State::Ended(succeeded) = place.state else { return None };
        place.state = State::Free;
        Some(succeeded)
    }

    fn flush(&self) -> bool {
        // The crate waits for this request alone, so no other may be under way.
        self.requests.lock().flushing += 1;
        loop {
            let mut requests = self.requests.lock();
            requests.look();
            if !requests.are_under_way() {
                requests.flushing -= 1;
                return requests.driver.as_mut().is_some_and(|driver| driver.flush().is_ok());
            }
            drop(requests);
            spin_loop();
        }
    }

    fn is_memory(&self) -> bool {
        false
    }
}
