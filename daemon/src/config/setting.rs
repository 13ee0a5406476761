//! What is known about a setting besides its value, and the macro that declares both at once.

use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use toml::Value;

use super::value::{MemoryTotal, NodeName, PeerAddress, Span};
use super::{
    Config, DebloatConfig, IoConfig, LimitsConfig, LinkConfig, LogConfig, MemoryConfig, MetricsConfig,
    ObserveConfig, PoolConfig, RecordConfig, ShardConfig,
};

/// Longest `run_dir`, in bytes: with the longest socket name it must fit into the 107 bytes of a socket's path.
pub(super) const RUN_DIR_BYTES_MAX: usize = 90;

/// One setting, as it is documented and checked.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its key inside its section.
    pub name: &'static str,
    /// What it does, in lines.
    pub doc: &'static [&'static str],
    /// Which values it takes.
    pub bounds: Bounds,
    /// The unit of its value.
    pub unit: &'static str,
    /// What a change needs.
    pub scope: Scope,
    /// What it costs.
    pub cost: &'static str,
}

/// A section of the file.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Its name; empty for the keys before the first section.
    pub name: &'static str,
    /// What it is about, in lines.
    pub doc: &'static [&'static str],
    /// Its settings. Empty for `peers`, whose keys are names of nodes.
    pub settings: &'static [Setting],
}

/// What it takes for a change to have an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The daemon must read its configuration anew (SIGHUP). It holds for what is made from then on.
    Reload,
    /// The same to raise it; to lower it the daemon must be restarted.
    ReloadToRaise,
    /// The daemon must be restarted.
    Restart,
    /// The daemon must be restarted, and every node must have the same value.
    RestartEverywhere,
}

impl Scope {
    /// The same, in words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reload => "reload",
            Self::ReloadToRaise => "reload to raise it, restart to lower it",
            Self::Restart => "restart",
            Self::RestartEverywhere => "restart; must be equal on every node",
        }
    }
}

/// Which values a setting takes.
#[derive(Clone, Copy, Debug)]
pub enum Bounds {
    /// A whole number, both ends included.
    Integer {
        /// Least.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// A power of two, both ends included.
    PowerOfTwo {
        /// Least.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// A duration as text: a whole number with `ms`, `s` or `min`, both ends included.
    Span {
        /// Least, in milliseconds.
        min_ms: u64,
        /// Largest, in milliseconds.
        max_ms: u64,
    },
    /// Bytes as a number or text, or a percentage as text.
    MemoryTotal,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// The name of a node.
    Name,
    /// An IP address with a port.
    SocketAddress,
    /// A host name or IP address with a port.
    PeerAddress,
    /// An absolute or relative path.
    Path,
    /// A path that is short enough to hold sockets.
    Directory,
    /// The name of a congestion control, or `system`.
    Congestion,
}

impl Bounds {
    /// Which values are taken, as the end of a sentence "needed: ...".
    #[must_use]
    pub fn needed(&self) -> String {
        match *self {
            Self::Integer { min, max } => format!("a whole number from {min} to {max}"),
            Self::PowerOfTwo { min, max } => format!("a power of two from {min} to {max}"),
            Self::Span { min_ms, max_ms } => {
                format!("a duration from \"{}\" to \"{}\"", Span::from_ms(min_ms), Span::from_ms(max_ms))
            }
            Self::MemoryTotal => MemoryTotal::NEEDED.to_owned(),
            Self::OneOf(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                format!("one of {}", quoted.join(", "))
            }
            Self::Name => "1 to 64 of A-Z a-z 0-9 . _ -, as text".to_owned(),
            Self::SocketAddress => "an IP address with a port, as \"127.0.0.1:7070\"".to_owned(),
            Self::PeerAddress => PeerAddress::NEEDED.to_owned(),
            Self::Path => "a path, as text".to_owned(),
            Self::Directory => format!("a path of 1 to {RUN_DIR_BYTES_MAX} bytes, as text"),
            Self::Congestion => "\"system\" or a name of 1 to 15 of a-z 0-9 _ -".to_owned(),
        }
    }

    /// Whether `value` is one of them.
    #[must_use]
    pub fn allows(&self, value: &Value) -> bool {
        let text = value.as_str();
        match *self {
            Self::Integer { min, max } => whole(value).is_some_and(|n| (min..=max).contains(&n)),
            Self::PowerOfTwo { min, max } => {
                whole(value).is_some_and(|n| (min..=max).contains(&n) && n.is_power_of_two())
            }
            Self::Span { min_ms, max_ms } => text
                .and_then(|text| Span::from_str(text).ok())
                .is_some_and(|span| (u128::from(min_ms)..=u128::from(max_ms)).contains(&span.0.as_millis())),
            Self::MemoryTotal => match value {
                Value::Integer(_) => whole(value).is_some_and(|n| MemoryTotal::Bytes(n).is_allowed()),
                _ => text.is_some_and(|text| MemoryTotal::from_str(text).is_ok()),
            },
            Self::OneOf(words) => text.is_some_and(|text| words.contains(&text)),
            Self::Name => text.is_some_and(|text| NodeName::from_str(text).is_ok()),
            Self::SocketAddress => text.is_some_and(|text| SocketAddr::from_str(text).is_ok()),
            Self::PeerAddress => text.is_some_and(|text| PeerAddress::from_str(text).is_ok()),
            Self::Path => text.is_some_and(|text| !text.is_empty() && !text.contains('\0')),
            Self::Directory => text.is_some_and(|text| {
                !text.is_empty()
                    && !text.contains('\0')
                    && Path::new(text).as_os_str().len() <= RUN_DIR_BYTES_MAX
            }),
            Self::Congestion => text.is_some_and(|text| {
                (1..=15).contains(&text.len())
                    && text
                        .bytes()
                        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b))
            }),
        }
    }
}

fn whole(value: &Value) -> Option<u64> {
    value.as_integer().and_then(|n| u64::try_from(n).ok())
}

/// Declares a configuration struct, its defaults and its [`Setting`]s.
///
/// Each field is `/// doc`, `[bounds, unit, scope, cost]`, `name: Type = default`. The struct that holds the
/// sections names them after its own fields; [`sections`] lists them.
macro_rules! settings {
    (
        $(#[doc = $doc:literal])*
        pub struct $struct:ident {
            $(
                $(#[doc = $field_doc:literal])*
                [$bounds:expr, $unit:literal, $scope:expr, $cost:literal]
                $field:ident: $type:ty = $default:expr,
            )*
        }
        $(sections { $( $section:ident: $section_type:ty, )* })?
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $struct {
            $( $(#[doc = $field_doc])* pub $field: $type, )*
            $($(
                #[doc = concat!("Section `[", stringify!($section), "]`.")]
                pub $section: $section_type,
            )*)?
        }

        impl $struct {
            /// What the struct is about, in lines.
            pub const DOC: &'static [&'static str] = &[$($doc),*];

            /// What is known about each field.
            pub const SETTINGS: &'static [$crate::config::Setting] = &[$(
                $crate::config::Setting {
                    name: stringify!($field),
                    doc: &[$($field_doc),*],
                    bounds: $bounds,
                    unit: $unit,
                    scope: $scope,
                    cost: $cost,
                },
            )*];
        }

        impl Default for $struct {
            fn default() -> Self {
                Self {
                    $( $field: $default, )*
                    $($( $section: <$section_type>::default(), )*)?
                }
            }
        }
    };
}

pub(super) use settings;

/// The doc of `[peers]`, whose keys are names of nodes and not fields.
const PEERS_DOC: &[&str] = &[
    " The other nodes: `NAME = \"HOST:PORT\"`, one line per peer. Two nodes are linked when one of them names the",
    " other; when both do, one link remains. A change needs a reload: a new peer is dialled, one that is not named any",
    " more is let go of unless it dials this node, and one with another address is dialled there; its data links go on.",
];

/// Every section, in the order of the file. The first has no name.
#[must_use]
pub const fn sections() -> [Section; 13] {
    [
        Section { name: "", doc: Config::DOC, settings: Config::SETTINGS },
        Section { name: "peers", doc: PEERS_DOC, settings: &[] },
        Section { name: "memory", doc: MemoryConfig::DOC, settings: MemoryConfig::SETTINGS },
        Section { name: "pool", doc: PoolConfig::DOC, settings: PoolConfig::SETTINGS },
        Section { name: "record", doc: RecordConfig::DOC, settings: RecordConfig::SETTINGS },
        Section { name: "debloat", doc: DebloatConfig::DOC, settings: DebloatConfig::SETTINGS },
        Section { name: "link", doc: LinkConfig::DOC, settings: LinkConfig::SETTINGS },
        Section { name: "shard", doc: ShardConfig::DOC, settings: ShardConfig::SETTINGS },
        Section { name: "io", doc: IoConfig::DOC, settings: IoConfig::SETTINGS },
        Section { name: "log", doc: LogConfig::DOC, settings: LogConfig::SETTINGS },
        Section { name: "limits", doc: LimitsConfig::DOC, settings: LimitsConfig::SETTINGS },
        Section { name: "observe", doc: ObserveConfig::DOC, settings: ObserveConfig::SETTINGS },
        Section { name: "metrics", doc: MetricsConfig::DOC, settings: MetricsConfig::SETTINGS },
    ]
}

impl Section {
    /// The dotted key of one of its settings.
    #[must_use]
    pub fn key(&self, setting: &Setting) -> String {
        if self.name.is_empty() { setting.name.to_owned() } else { format!("{}.{}", self.name, setting.name) }
    }
}
