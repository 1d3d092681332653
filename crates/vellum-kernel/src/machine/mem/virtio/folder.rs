//! Driver of QEMU's folder of the host (`virtio-9p-pci`): the way of the messages of 9P2000.L.

use super::Dma;
use crate::arch::serial::println;
use crate::mem::vmalloc;
use spin::Mutex;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::p9;
use virtio_drivers::device::common::Feature;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::pci::PciTransport;
use virtio_drivers::transport::{DeviceType, Transport};

/// The number of buffers of the queue. A message takes two.
const QUEUE_SIZE: usize = 4;

/// The device. The calling CPU polls for the reply.
pub struct SharedFolder(Mutex<(PciTransport, VirtQueue<Dma, QUEUE_SIZE>)>);

impl SharedFolder {
    /// Returns the folder at a slot of the machine's first PCI bus.
    pub fn find(slot: u8) -> Option<Self> {
        let mut transport = super::find(slot, DeviceType::_9P)?;
        transport.begin_init(Feature::VERSION_1);
        let queue = VirtQueue::new(&mut transport, 0, false, false)
            .inspect_err(|error| println!("folder {slot}: the queue cannot be set up: {error}"))
            .ok()?;
        transport.finish_init();
        Some(SharedFolder(Mutex::new((transport, queue))))
    }
}

impl p9::Transport for SharedFolder {
    fn exchange(&self, request: &[u8], reply: &mut [u8]) -> Result<usize, Errno> {
        let is_whole = |bytes: &[u8]| bytes.len() <= vmalloc::contiguous(bytes.as_ptr());
        if !is_whole(request) || !is_whole(reply) {
            return Err(Errno::ENOMEM);
        }
        let (transport, queue) = &mut *self.0.lock();
        let len = queue.add_notify_wait_pop(&[request], &mut [reply], transport).map_err(|_| Errno::EIO)?;
        Ok(len as usize)
    }
}
