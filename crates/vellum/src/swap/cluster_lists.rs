//! Lists of the clusters with free slots, one list for each size of their largest free block
//! (Linux: `nonfull_clusters`).
//!
//! A cluster's *room* is the order of its largest free block. A cluster is in the list for its
//! room, or it is some CPU's current cluster, or it has no free slot and is in no list. Slots are
//! allocated only from a CPU's current cluster. So a listed cluster has a free block of at least
//! its list's order. A cluster changes its list only under the cluster's lock, with one exception:
//! a CPU that takes a cluster from a list, as its current cluster, holds only the lock of the
//! lists.

use core::sync::atomic::Ordering::Relaxed;

use super::cluster::Cluster;
use super::paged::Paged;
use crate::frame::HUGE_ORDER;

/// The index that stands for no cluster, at the end of a list.
pub(super) const NONE: u32 = u32::MAX;

/// The number of lists: one for each order.
const LISTS: usize = HUGE_ORDER as usize + 1;

// The values of `Cluster::list`: one more than the order of the list that the cluster is in,
// `UNLISTED` for a cluster without free slots, or `PERCPU` for a CPU's current cluster. When slots
// become free, a cluster moves only to a higher value, and a CPU's current cluster does not move.
const UNLISTED: u8 = 0;
const PERCPU: u8 = LISTS as u8 + 1;

/// The first cluster of each list. The lock around this value protects the links in the clusters
/// too.
#[derive(Debug)]
pub(super) struct ClusterLists([u32; LISTS]);

impl ClusterLists {
    /// Returns empty lists.
    pub(super) const fn new() -> Self {
        ClusterLists([NONE; LISTS])
    }

    /// Removes a cluster that has a free block of `1 << order` slots from its list, and marks it as
    /// a CPU's current cluster. Returns the cluster's index. Takes the first cluster of the list
    /// with the lowest sufficient order, so that large blocks stay whole as long as smaller ones
    /// suffice.
    pub(super) fn pop(&mut self, clusters: &Paged<Cluster>, order: u8) -> Option<u32> {
        let index = self.0.iter().skip(order as usize).copied().find(|first| *first != NONE)?;
        self.unlink(clusters, clusters.get(index));
        clusters.get(index).list.store(PERCPU, Relaxed);
        Some(index)
    }

    /// Inserts a cluster that was a CPU's current cluster into the list for `room`, the order of
    /// its largest free block. The caller holds the cluster's lock.
    pub(super) fn put_back(&mut self, clusters: &Paged<Cluster>, index: u32, room: Option<u8>) {
        let cluster = clusters.get(index);
        debug_assert_eq!(cluster.list.load(Relaxed), PERCPU);
        self.link(clusters, index, cluster, room);
    }

    /// Returns true if a cluster belongs in a list of a higher order than its present one. `room`
    /// returns the order of the cluster's largest free block, and is called only if the cluster is
    /// not a CPU's current one. The caller holds the cluster's lock; even so another CPU may take
    /// the cluster from its list at any moment.
    #[inline]
    pub(super) fn needs_requeue(cluster: &Cluster, room: impl FnOnce() -> Option<u8>) -> bool {
        let list = cluster.list.load(Relaxed);
        list < LISTS as u8 && list < list_of(room())
    }

    /// Moves a cluster to the list for `room`, the order of its largest free block, if that is
    /// higher than the order of its present list. The caller holds the cluster's lock.
    pub(super) fn requeue(&mut self, clusters: &Paged<Cluster>, index: u32, room: Option<u8>) {
        let cluster = clusters.get(index);
        if ClusterLists::needs_requeue(cluster, || room) {
            if cluster.list.load(Relaxed) != UNLISTED {
                self.unlink(clusters, cluster);
            }
            self.link(clusters, index, cluster, room);
        }
    }

    /// Inserts a cluster at the head of the list for `room`.
    fn link(&mut self, clusters: &Paged<Cluster>, index: u32, cluster: &Cluster, room: Option<u8>) {
        cluster.list.store(list_of(room), Relaxed);
        let Some(room) = room else { return };
        let first = &mut self.0[room as usize];
        cluster.links[0].store(*first, Relaxed);
        cluster.links[1].store(NONE, Relaxed);
        if *first != NONE {
            clusters.get(*first).links[1].store(index, Relaxed);
        }
        *first = index;
    }

    /// Removes a cluster from its list. Its `list` and links keep their old values.
    fn unlink(&mut self, clusters: &Paged<Cluster>, cluster: &Cluster) {
        let [next, previous] = [0, 1].map(|i| cluster.links[i].load(Relaxed));
        if next != NONE {
            clusters.get(next).links[1].store(previous, Relaxed);
        }
        if previous != NONE {
            clusters.get(previous).links[0].store(next, Relaxed);
        } else {
            self.0[cluster.list.load(Relaxed) as usize - 1] = next;
        }
    }
}

/// Returns the value of `Cluster::list` for a cluster whose largest free block has the order
/// `room`.
fn list_of(room: Option<u8>) -> u8 {
    room.map_or(UNLISTED, |order| order + 1)
}
