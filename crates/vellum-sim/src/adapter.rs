//! Implements [`Handler`] for the engine's address spaces, so that simulated programs can run in
//! them.

use vellum::AddressSpace;
use vellum::addr::Pfn;
use vellum::platform::{Platform, SpaceId};
use vellum::space::{self, FaultError};

use crate::program::{Access, Handler};

impl<P: Platform> Handler for AddressSpace<'_, P> {
    type Error = FaultError;

    fn root(&self) -> Pfn {
        AddressSpace::root(self)
    }

    fn space_id(&self) -> SpaceId {
        self.id()
    }

    fn fault(&self, va: u64, access: Access) -> Result<(), FaultError> {
        let access = match access {
            Access::Read => space::Access::Read,
            Access::Write => space::Access::Write,
            Access::Execute => space::Access::Exec,
        };
        AddressSpace::fault(self, va, access).map(|_| ())
    }

    fn enter(&self, cpu: usize) {
        self.cpu_enter(cpu);
    }

    fn leave(&self, cpu: usize) {
        self.cpu_leave(cpu);
    }
}
