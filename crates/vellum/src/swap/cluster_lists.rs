//! Lists of the clusters with free slots, one list for each size of their largest free block
//! (Linux: `nonfull_clusters`).
//!
//! A cluster is in the list of the largest aligned block that is free in it, or it is some CPU's
//! current cluster, or it has no free slot and is in no list. Slots are allocated only from a CPU's
//! current cluster. So a listed cluster has at least the room that its list promises. A cluster's
//! list changes only with the cluster's lock held, with one exception: a CPU that takes a cluster
//! from a list, to make it its current cluster.

use core::sync::atomic::Ordering::Relaxed;

use super::cluster::Cluster;
use super::paged::Paged;
use crate::frame::HUGE_ORDER;

/// No cluster: the end of a list.
pub(super) const NONE: u32 = u32::MAX;

/// The number of lists: one for each order.
const LISTS: usize = HUGE_ORDER as usize + 1;

// The values of a cluster's `list`: one more than the order of its list, or one of these. A cluster
// with more room moves to a higher value; a CPU's current cluster does not move.
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

    /// Removes a cluster that has a free block of `1 << order` slots, for a CPU to use. It takes
    /// the first cluster of the list with the least sufficient room, so that large blocks stay
    /// whole as long as smaller ones suffice.
    pub(super) fn pop(&mut self, clusters: &Paged<Cluster>, order: u8) -> Option<u32> {
        let index = self.0.iter().skip(order as usize).copied().find(|first| *first != NONE)?;
        self.unlink(clusters, clusters.get(index));
        clusters.get(index).list.store(PERCPU, Relaxed);
        Some(index)
    }

    /// Inserts a cluster that was a CPU's current one, with this room. The caller holds the
    /// cluster's lock.
    pub(super) fn put_back(&mut self, clusters: &Paged<Cluster>, index: u32, room: Option<u8>) {
        let cluster = clusters.get(index);
        debug_assert_eq!(cluster.list.load(Relaxed), PERCPU);
        self.link(clusters, index, cluster, room);
    }

    /// Returns true if a cluster with this room belongs in a list of more room. `room` is called
    /// only if the cluster is not a CPU's current one. The caller holds the cluster's lock; even so
    /// another CPU may take the cluster from its list at any moment.
    #[inline]
    pub(super) fn needs_requeue(cluster: &Cluster, room: impl FnOnce() -> Option<u8>) -> bool {
        let list = cluster.list.load(Relaxed);
        list < LISTS as u8 && list < list_of(room())
    }

    /// Moves a cluster to the list for `room`, if that is more than its present list's. The caller
    /// holds the cluster's lock.
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

/// Returns the value of `list` for a cluster with this room.
fn list_of(room: Option<u8>) -> u8 {
    room.map_or(UNLISTED, |order| order + 1)
}
