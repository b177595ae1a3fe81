//! Pure: how the replicas of a model and the machines that hold them divide each other. A machine has whole replicas, or a
//! replica whole machines.

/// Replicas over machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Replicas of the model.
    pub num_replicas: u32,
    /// Machines that have shards.
    pub num_nodes: u32,
}

impl Layout {
    /// Whether they divide each other.
    pub fn is_even(self) -> bool {
        self.num_replicas.is_multiple_of(self.num_nodes) || self.num_nodes.is_multiple_of(self.num_replicas)
    }

    /// Replicas that a machine has shards of.
    pub fn replicas_of_node(self) -> u32 {
        (self.num_replicas / self.num_nodes).max(1)
    }

    /// Machines that have shards of a replica.
    pub fn nodes_of_replica(self) -> u32 {
        (self.num_nodes / self.num_replicas).max(1)
    }

    /// The first replica of a machine, of which `node` are before it.
    pub fn first_replica(self, node: u32) -> u32 {
        node / self.nodes_of_replica() * self.replicas_of_node()
    }

    /// The place of that machine among those of its replica.
    pub fn place_in_replica(self, node: u32) -> u32 {
        node % self.nodes_of_replica()
    }
}

/// The name of a shard in log lines, with its replica where there are several.
pub fn shard_name(num_replicas: usize, group: usize, rank: usize) -> String {
    if num_replicas == 1 { format!("shard {rank}") } else { format!("replica {group} shard {rank}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_have_whole_replicas_or_replicas_whole_machines() {
        let of = |num_replicas, num_nodes| {
            let layout = Layout { num_replicas, num_nodes };
            assert!(layout.is_even());
            let places =
                (0..num_nodes).map(|node| (layout.first_replica(node), layout.place_in_replica(node)));
            (layout.replicas_of_node(), layout.nodes_of_replica(), places.collect::<Vec<_>>())
        };
        assert_eq!(of(4, 1), (4, 1, vec![(0, 0)]));
        assert_eq!(of(4, 2), (2, 1, vec![(0, 0), (2, 0)]));
        assert_eq!(of(2, 2), (1, 1, vec![(0, 0), (1, 0)]));
        assert_eq!(of(2, 4), (1, 2, vec![(0, 0), (0, 1), (1, 0), (1, 1)]));
        assert_eq!(of(1, 2), (1, 2, vec![(0, 0), (0, 1)]));
        assert!(!Layout { num_replicas: 3, num_nodes: 2 }.is_even());
    }
}
