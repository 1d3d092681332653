//! Fixtures that the tests share.

use crate::errno::Errno;
use crate::fs::Pages;
use crate::fs::meta::Time;
use crate::fs::pages::OnHeap;
use crate::fs::tree::{Capacity, Host};
use core::future::Future;
use core::pin::pin;
use core::sync::atomic::{AtomicI64, AtomicUsize, Ordering::SeqCst};
use core::task::{Context, Poll, Waker};
use std::sync::Arc;
use std::task::Wake;
use std::thread::{self, Thread};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A host for tmpfs. Its clock advances by a second whenever it is read.
pub struct Machine;

impl Host for Machine {
    fn now(&self) -> Time {
        static NOW: AtomicI64 = AtomicI64::new(1);
        Time { seconds: NOW.fetch_add(1, SeqCst), nanoseconds: 0 }
    }

    fn pages(&self) -> Result<Arc<dyn Pages>, Errno> {
        Ok(Arc::new(OnHeap::default()))
    }

    fn space(&self) -> Capacity {
        Capacity { total: 1000, free: 500 }
    }
}

/// Polls a future on this thread until it completes, and returns its value.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// A waker that counts its wakes.
#[derive(Default)]
pub struct Count(AtomicUsize);

impl Count {
    pub fn new() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count::default());
        (count.clone(), Waker::from(count))
    }

    pub fn woken(&self) -> usize {
        self.0.load(SeqCst)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}
