//! What a name server is told at start: each key with its row. config-reference 14.

use std::path::PathBuf;

use super::knobs::{Range, Setting, settings};
use super::load::{Configuration, Notice, Surroundings};
use super::{knobs, unused};

use Range::{Flag, Path, Text, Whole};

settings! {
    /// The configuration of a name server, defaults filled in.
    pub struct NamesrvConfig;

    /// The interface that is listened on; 0.0.0.0 is all of them.
    "bindAddress" => bind_address: String = "0.0.0.0",
        Text(255), "", AtStart, Used, "first lines of the log";
    /// The port for brokers, clients and tools.
    "listenPort" => listen_port: u16 = "9876",
        Whole(0, 65_535), "port", AtStart, Used, "first lines of the log";
    /// The file of the key-value settings (codes 100-102); empty: `namesrv/kvConfig.json` in the
    /// home directory.
    "kvConfigPath" => kv_config_path: PathBuf = "",
        Path, "", AtStart, Used, "first lines of the log";
    /// The file that changes by request (318) are saved in; empty: `namesrv/namesrv.properties` in
    /// the home directory.
    "configStorePath" => config_store_path: PathBuf = "",
        Path, "", AtStart, Used, "first lines of the log";
    /// How often silent brokers are looked for.
    "scanNotActiveBrokerInterval" => scan_not_active_broker_interval: u32 = "5000",
        Whole(100, 600_000), "ms", AtStart, Used, "brokers expired";
    /// A connection without a byte in either direction for so long is closed, and its broker with
    /// it.
    "serverChannelMaxIdleTimeSeconds" => server_channel_max_idle_time_seconds: u32 = "120",
        Whole(1, 86_400), "s", AtStart, Used, "connections closed: idle";
    /// Connections that may wait to be accepted.
    "serverSocketBacklog" => server_socket_backlog: u32 = "1024",
        Whole(1, 65_535), "connections", AtStart, Used, "connections accepted";
    /// The socket's send buffer; 0 leaves it to the kernel.
    "serverSocketSndBufSize" => server_socket_snd_buf_size: u32 = "0",
        Whole(0, 1 << 30), "bytes", AtStart, Used, "ss -tm";
    /// The socket's receive buffer; 0 leaves it to the kernel.
    "serverSocketRcvBufSize" => server_socket_rcv_buf_size: u32 = "0",
        Whole(0, 1 << 30), "bytes", AtStart, Used, "ss -tm";
    /// Connections at a time; one more is closed at once.
    "maxConnections" => max_connections: u32 = "10000",
        Whole(1, 1_000_000), "connections", AtStart, Used, "connections refused: too many";
    /// Routes carry the order settings of ordered topics.
    "orderMessageEnable" => order_message_enable: bool = "false",
        Flag, "", Live, Used, "route (105)";
    /// A registration is answered with the order settings of all topics.
    "returnOrderTopicConfigToBroker" => return_order_topic_config_to_broker: bool = "true",
        Flag, "", Live, Used, "answer of a registration (103)";
    /// A slave may be shown as the master of a group that has none.
    "supportActingMaster" => support_acting_master: bool = "false",
        Flag, "", Live, Used, "route (105)";
    /// The members of a group are told when its smallest broker id changes (code 905).
    "notifyMinBrokerIdChanged" => notify_min_broker_id_changed: bool = "false",
        Flag, "", Live, Used, "groups told of a change";
    /// All topics may be listed (206).
    "enableAllTopicList" => enable_all_topic_list: bool = "true",
        Flag, "", Live, Used, "topic list (206)";
    /// Topics may be listed by cluster and by kind (224, 311-313).
    "enableTopicList" => enable_topic_list: bool = "true",
        Flag, "", Live, Used, "topic list (224)";
    /// A topic that a broker no longer registers loses that broker's queues.
    "deleteTopicWithBrokerRegistration" => delete_topic_with_broker_registration: bool = "false",
        Flag, "", Live, Used, "route (105)";
    /// Routes are refused until waitSecondsForService after the start.
    "needWaitForService" => need_wait_for_service: bool = "false",
        Flag, "", Live, Used, "routes refused: not ready";
    /// How long they are.
    "waitSecondsForService" => wait_seconds_for_service: u32 = "45",
        Whole(0, 86_400), "s", Live, Used, "routes refused: not ready";
    /// Keys that no request may change, separated by `;`.
    "configBlackList" => config_black_list: String = "configBlackList;configStorePath;kvConfigPath",
        Text(4_096), "", AtStart, Used, "changes refused (318)";
}

impl Configuration for NamesrvConfig {
    const ROWS: &'static [&'static [knobs::Knob]] =
        &[Self::KNOBS, unused::NAMESRV, unused::SOCKETS, unused::TLS];

    fn set(&mut self, name: &str, text: &str) -> Result<bool, knobs::ValueError> {
        self.set(name, text)
    }

    fn black_list(&self) -> &str {
        &self.config_black_list
    }

    /// Fills in what depends on the machine.
    fn finish(&mut self, around: &Surroundings, _notices: &mut Vec<Notice>) {
        let home = around.home.join("namesrv");
        if self.kv_config_path.as_os_str().is_empty() {
            self.kv_config_path = home.join("kvConfig.json");
        }
        if self.config_store_path.as_os_str().is_empty() {
            self.config_store_path = home.join("namesrv.properties");
        }
    }
}
