//! The consumers' offsets as they are saved: `consumerOffset.json`. The owners of the queues keep
//! the living ones and send what changed.

use std::collections::BTreeMap;

use crate::broker::news::Offsets;
use crate::wire::bodies::OffsetTable;

#[derive(Debug, Default)]
pub struct SavedOffsets {
    table: OffsetTable,
}

impl SavedOffsets {
    #[must_use]
    pub fn new(table: OffsetTable) -> Self {
        SavedOffsets { table }
    }

    /// `(topic, group, queue id, offset)`; keys without `@` are nobody's.
    #[must_use]
    pub fn all(&self) -> Vec<(String, String, i32, i64)> {
        let mut all = Vec::new();
        for (key, queues) in &self.table.offset_table {
            let Some((topic, group)) = key.split_once('@') else {
                continue;
            };
            let entry = |(queue, offset): (&i32, &i64)| {
                (topic.to_owned(), group.to_owned(), *queue, *offset)
            };
            all.extend(queues.iter().map(entry));
        }
        all
    }

    /// Takes over what an owner sent. Returns whether anything changed.
    pub fn update(&mut self, changed: Offsets) -> bool {
        let mut any = false;
        for (topic, group, queue, offset) in changed.0 {
            let queues = self
                .table
                .offset_table
                .entry(format!("{topic}@{group}"))
                .or_default();
            any |= queues.insert(queue, offset) != Some(offset);
            let topics = self.table.group_topic_map.entry(group).or_default();
            if !topics.contains(&topic) {
                topics.push(topic);
            }
        }
        any
    }

    /// Drops the offsets of a topic or of a group. Returns whether there were any.
    pub fn remove(&mut self, topic: Option<&str>, group: Option<&str>) -> bool {
        let before = self.table.offset_table.len();
        self.table.offset_table.retain(|key, _| {
            let Some((of_topic, of_group)) = key.split_once('@') else {
                return true;
            };
            Some(of_topic) != topic && Some(of_group) != group
        });
        for topics in self.table.group_topic_map.values_mut() {
            topics.retain(|of_group| Some(of_group.as_str()) != topic);
        }
        self.table
            .group_topic_map
            .retain(|of_group, topics| Some(of_group.as_str()) != group && !topics.is_empty());
        before != self.table.offset_table.len()
    }

    pub fn bump(&mut self, wall_ms: u64) {
        self.table.data_version.counter += 1;
        self.table.data_version.timestamp = wall_ms as i64;
    }

    #[must_use]
    pub fn wire(&self) -> &OffsetTable {
        &self.table
    }

    /// Topics of which a group has offsets.
    #[must_use]
    pub fn topics_of(&self, group: &str) -> Vec<String> {
        self.table
            .group_topic_map
            .get(group)
            .cloned()
            .unwrap_or_default()
    }

    /// Groups that have offsets of a topic.
    #[must_use]
    pub fn groups_of(&self, topic: &str) -> Vec<String> {
        let has = |(_, topics): &(&String, &Vec<String>)| topics.iter().any(|of| of == topic);
        self.table
            .group_topic_map
            .iter()
            .filter(has)
            .map(|(group, _)| group.clone())
            .collect()
    }

    #[must_use]
    pub fn of(&self, topic: &str, group: &str) -> Option<&BTreeMap<i32, i64>> {
        self.table.offset_table.get(&format!("{topic}@{group}"))
    }
}
