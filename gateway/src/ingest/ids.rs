//! The ids of rows that were read, as ranges.

/// See the module. Ids next to each other lie in one range, so that those of a run that is alone take no space.
#[derive(Clone, Debug, Default)]
pub(super) struct Ids {
    /// First and last of each range, in order, none touching the next.
    ranges: Vec<(i64, i64)>,
}

impl Ids {
    pub fn contains(&self, id: i64) -> bool {
        let at = self.ranges.partition_point(|(first, _)| *first <= id);
        at > 0 && self.ranges[at - 1].1 >= id
    }

    /// Gives whether it was not there.
    pub fn insert(&mut self, id: i64) -> bool {
        if self.contains(id) {
            return false;
        }
        let at = self.ranges.partition_point(|(first, _)| *first < id);
        let joins_before = at > 0 && self.ranges[at - 1].1 + 1 == id;
        let joins_after = at < self.ranges.len() && self.ranges[at].0 - 1 == id;
        match (joins_before, joins_after) {
            (true, true) => {
                self.ranges[at - 1].1 = self.ranges[at].1;
                self.ranges.remove(at);
            }
            (true, false) => self.ranges[at - 1].1 = id,
            (false, true) => self.ranges[at].0 = id,
            (false, false) => self.ranges.insert(at, (id, id)),
        }
        true
    }

    /// The highest ids, at most `count`, and the id behind which these are all.
    pub fn newest(&self, count: usize) -> (i64, Vec<i64>) {
        let all = self.ranges.iter().rev().flat_map(|(first, last)| (*first..=*last).rev());
        let newest: Vec<i64> = all.take(count).collect();
        let is_all = newest.len() < count;
        let floor = newest.last().map_or(i64::MIN, |id| id - 1);
        (if is_all { i64::MIN } else { floor }, newest)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ids_are_a_set_in_any_order(ids in prop::collection::vec(-20i64..20, 0..60), count in 1usize..12) {
            let (mut ranges, mut set) = (Ids::default(), BTreeSet::new());
            for id in ids {
                assert_eq!(ranges.insert(id), set.insert(id));
            }
            for id in -22..22 {
                assert_eq!(ranges.contains(id), set.contains(&id), "{id} in {ranges:?}");
            }
            assert!(ranges.ranges.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{ranges:?}");
            let (floor, newest) = ranges.newest(count);
            assert_eq!(newest, set.iter().rev().take(count).copied().collect::<Vec<_>>());
            assert!(set.iter().filter(|id| **id > floor).count() == newest.len());
        }
    }
}
