//! This core's copy of the consumer groups: settings, and the subscriptions of those online.
//!
//! Control writes, every shard hears of it as news. A group that a pull names and nobody has made
//! gets Java's default settings here (`autoCreateSubscriptionGroup`, broker-requests 0).

use std::rc::Rc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use super::news::{GroupSettings, Online, Subscription};
use super::topics::is_legal_name;
use crate::limits::{GROUP_BYTES_MAX, GROUPS_MAX};
use crate::wire::properties::java_hash;

/// Which messages a pull wants, by the hash codes of their tags (4.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TagFilter {
    All,
    /// From a heartbeat: shared with the group's subscription.
    Shared(Rc<[i32]>),
    /// From the pull itself.
    Own(SmallVec<[i32; 8]>),
}

impl TagFilter {
    /// Parses a TAG expression. `None` if it names no tag at all, as `||` (code 23).
    #[must_use]
    pub fn parse(expression: &str) -> Option<TagFilter> {
        if expression.is_empty() || expression == "*" {
            return Some(TagFilter::All);
        }
        if expression.split("||").all(str::is_empty) {
            return None;
        }
        let tags = expression.split("||").map(str::trim);
        let hashes = tags.filter(|tag| !tag.is_empty()).map(java_hash);
        Some(TagFilter::Own(hashes.collect()))
    }

    /// Whether a unit with this tags code is wanted: only its low 32 bits count.
    #[must_use]
    pub fn matches(&self, tags_code: i64) -> bool {
        let hash = tags_code as i32;
        match self {
            TagFilter::All => true,
            TagFilter::Shared(hashes) => hashes.contains(&hash),
            TagFilter::Own(hashes) => hashes.contains(&hash),
        }
    }
}

/// What a group wants of one topic.
#[derive(Clone, Debug)]
pub struct Subscribed {
    pub filter: TagFilter,
    /// `TAG` or empty, else the name of another kind of filter.
    pub expression_type: Box<str>,
    pub version: i64,
}

/// A group with members.
#[derive(Clone, Debug)]
pub struct OnlineGroup {
    pub broadcasting: bool,
    subscriptions: HashMap<Box<str>, Subscribed, FixedState>,
}

impl OnlineGroup {
    #[must_use]
    pub fn subscription(&self, topic: &str) -> Option<&Subscribed> {
        self.subscriptions.get(topic)
    }
}

/// What a pull needs of a group's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub consume_enable: bool,
    pub broadcast_enable: bool,
    pub retry_max_times: i32,
    pub sys_flag: i32,
}

impl Settings {
    /// Java's settings of a group that nobody has configured.
    pub const DEFAULT: Settings = Settings {
        consume_enable: true,
        broadcast_enable: true,
        retry_max_times: 16,
        sys_flag: 0,
    };
}

/// All groups, by name.
#[derive(Debug)]
pub struct Groups {
    settings: HashMap<Box<str>, Settings, FixedState>,
    online: HashMap<Box<str>, OnlineGroup, FixedState>,
    auto_create: bool,
    hasher: FixedState,
}

impl Groups {
    #[must_use]
    pub fn new(groups: &[GroupSettings], auto_create: bool, hash_seed: u64) -> Groups {
        let hasher = FixedState::with_seed(hash_seed);
        let mut all = Groups {
            settings: HashMap::with_hasher(hasher.clone()),
            online: HashMap::with_hasher(hasher.clone()),
            auto_create,
            hasher,
        };
        groups.iter().for_each(|group| all.set(group));
        all
    }

    pub fn set(&mut self, group: &GroupSettings) {
        let settings = Settings {
            consume_enable: group.consume_enable,
            broadcast_enable: group.broadcast_enable,
            retry_max_times: group.retry_max_times,
            sys_flag: group.sys_flag,
        };
        self.settings.insert(group.name.as_str().into(), settings);
    }

    pub fn remove(&mut self, group: &str) {
        self.settings.remove(group);
    }

    pub fn set_online(&mut self, online: &Online) {
        let mut subscriptions = HashMap::with_hasher(self.hasher.clone());
        for subscription in &online.subscriptions {
            let subscribed = subscribed(subscription);
            subscriptions.insert(subscription.topic.as_str().into(), subscribed);
        }
        let group = OnlineGroup {
            broadcasting: online.broadcasting,
            subscriptions,
        };
        self.online.insert(online.group.as_str().into(), group);
    }

    pub fn set_offline(&mut self, group: &str) {
        self.online.remove(group);
    }

    #[must_use]
    pub fn online(&self, group: &str) -> Option<&OnlineGroup> {
        self.online.get(group)
    }

    #[must_use]
    pub fn get(&self, group: &str) -> Option<Settings> {
        self.settings.get(group).copied()
    }

    /// The group's settings; a group with a legal name is made if the broker may do that.
    pub fn get_or_create(&mut self, group: &str) -> Option<Settings> {
        if let Some(settings) = self.settings.get(group) {
            return Some(*settings);
        }
        let legal = group.is_empty() || is_legal_name(group);
        let fits = group.len() <= GROUP_BYTES_MAX && self.settings.len() < GROUPS_MAX;
        if !(self.auto_create && legal && fits) {
            return None;
        }
        self.settings.insert(group.into(), Settings::DEFAULT);
        Some(Settings::DEFAULT)
    }
}

fn subscribed(subscription: &Subscription) -> Subscribed {
    let filter = if subscription.tag_hashes.is_empty() {
        TagFilter::All
    } else {
        TagFilter::Shared(subscription.tag_hashes.as_slice().into())
    };
    Subscribed {
        filter,
        expression_type: subscription.expression_type.as_str().into(),
        version: subscription.version,
    }
}

/// Absent, empty and `TAG` mean the same (4.1).
#[must_use]
pub fn is_tag_type(expression_type: &str) -> bool {
    expression_type.is_empty() || expression_type == "TAG"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_expressions_are_read_as_java_reads_them() {
        for all in ["", "*"] {
            assert_eq!(TagFilter::parse(all), Some(TagFilter::All), "{all:?}");
        }
        for none in ["||", "||||"] {
            assert_eq!(TagFilter::parse(none), None, "{none:?}");
        }
        let filter = TagFilter::parse(" TagA || TagB||").expect("it names tags");
        // The hash codes of TagA and TagB (client-behaviour 7).
        assert!(filter.matches(2_598_919) && filter.matches(2_598_920));
        assert!(!filter.matches(0) && !filter.matches(2_598_921));
        let nothing = TagFilter::parse(" ").expect("Java takes it");
        assert!(!nothing.matches(0));
    }

    #[test]
    fn only_the_low_half_of_a_tags_code_counts() {
        let filter = TagFilter::parse("polygenelubricants").expect("one tag");
        assert!(filter.matches(i64::from(i32::MIN)));
        assert!(filter.matches(0x8000_0000));
    }

    #[test]
    fn a_group_is_made_by_its_first_pull_if_its_name_is_legal() {
        let mut groups = Groups::new(&[], true, 1);
        assert_eq!(groups.get("G"), None);
        assert_eq!(groups.get_or_create("G"), Some(Settings::DEFAULT));
        assert_eq!(groups.get("G"), Some(Settings::DEFAULT));
        assert_eq!(groups.get_or_create(""), Some(Settings::DEFAULT));
        assert_eq!(groups.get_or_create("bad group"), None);
        assert!(groups.get_or_create(&"x".repeat(255)).is_some());
        assert_eq!(groups.get_or_create(&"x".repeat(256)), None);
        let mut strict = Groups::new(&[], false, 1);
        assert_eq!(strict.get_or_create("G"), None);
    }
}
