//! The types of values that TOML has none for. Each is read from text, written as the same text, and says what it
//! needs when it is wrong.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use weir_flow::exchange::Name;

/// Serde through `FromStr` and `Display`.
macro_rules! as_text {
    ($type:ty, $needed:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::from_str(&text)
                    .map_err(|_| de::Error::custom(format!("found {text:?}; needed: {}", $needed)))
            }
        }
    };
}

/// A setting that is one of a few words.
macro_rules! words {
    ($(#[$doc:meta])* $type:ident { $( $(#[$variant_doc:meta])* $variant:ident = $word:literal, )* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type { $( $(#[$variant_doc])* $variant, )* }

        impl $type {
            /// Every word, as the configuration writes them.
            pub const NAMES: &'static [&'static str] = &[$($word),*];

            /// Its word.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $word, )* }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $type {
            type Err = ValueError;

            fn from_str(text: &str) -> Result<Self, ValueError> {
                match text {
                    $( $word => Ok(Self::$variant), )*
                    _ => Err(ValueError(Self::NAMES.join(", "))),
                }
            }
        }

        as_text!($type, Self::NAMES.join(", "));
    };
}

/// A text that is not a value of its type. Holds what would be one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueError(pub String);

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "needed: {}", self.0)
    }
}

impl std::error::Error for ValueError {}

words! {
    /// Whether regions are made of 2 MiB hugepages.
    HugepageMode {
        /// When there are free ones.
        Auto = "auto",
        /// Always; else the region is refused.
        Require = "require",
        /// Never.
        Off = "off",
    }
}
words! {
    /// Whether links send without a copy.
    ZeroCopyMode {
        /// Those for which it pays.
        Auto = "auto",
        /// All that can.
        Always = "always",
        /// None.
        Never = "never",
    }
}
words! {
    /// Whether shards stay on one CPU each.
    PinMode {
        /// When there are fewer shards than allowed CPUs.
        Auto = "auto",
        /// Always.
        On = "on",
        /// Never.
        Off = "off",
    }
}
words! {
    /// Whether kernel probes watch the sockets of links.
    ProbesMode {
        /// When they can be loaded.
        Auto = "auto",
        /// Never.
        Off = "off",
        /// Always; else the daemon does not start.
        Require = "require",
    }
}
words! {
    /// Whether gates keep what is in flight to them to a time.
    DebloatMode {
        /// Unless their client says otherwise.
        On = "on",
        /// Only those whose client says so.
        Off = "off",
    }
}
words! {
    /// Highest level of io_uring that is used.
    IoLevel {
        /// The best that the kernel has.
        Auto = "auto",
        /// Multishot receive into shared buffers.
        Incremental = "incremental",
        /// One receive at a time.
        Oneshot = "oneshot",
    }
}
words! {
    /// Least severe level that the log has.
    LogLevel {
        /// Only what fails.
        Error = "error",
        /// And what is degraded.
        Warn = "warn",
        /// And what starts and stops.
        Info = "info",
        /// And each link, partition and gate.
        Debug = "debug",
        /// And more.
        Trace = "trace",
    }
}
words! {
    /// Form of the log.
    LogFormat {
        /// Entries of the journal where standard error goes there, else for people.
        Auto = "auto",
        /// For people.
        Text = "text",
        /// For programs: one object per line.
        Json = "json",
        /// Entries of the journal of systemd.
        Journald = "journald",
    }
}

/// A duration: a whole number with `ms`, `s` or `min`, or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    /// What a duration looks like.
    pub const NEEDED: &'static str = "a whole number with ms, s or min, as 100ms";

    /// A duration of this many milliseconds.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        if ms.is_multiple_of(60_000) && ms > 0 {
            write!(f, "{}min", ms / 60_000)
        } else if ms.is_multiple_of(1000) {
            write!(f, "{}s", ms / 1000)
        } else {
            write!(f, "{ms}ms")
        }
    }
}

impl FromStr for Span {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let error = || ValueError(Self::NEEDED.to_owned());
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| error())?;
        let unit_ms = match unit.trim_start() {
            "ms" => 1,
            "s" => 1000,
            "min" => 60_000,
            "" if number == 0 => 1,
            _ => return Err(error()),
        };
        number.checked_mul(unit_ms).map(Self::from_ms).ok_or_else(error)
    }
}

as_text!(Span, Self::NEEDED);

/// The bound on the memory of all regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryTotal {
    /// This many bytes.
    Bytes(u64),
    /// This share of the memory that the daemon may use, 1 to 90.
    Percent(u8),
}

/// Units that an amount of bytes may have, the larger ones first.
const BYTE_UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl MemoryTotal {
    /// What it looks like.
    pub const NEEDED: &'static str =
        "at least 4 MiB as bytes (67108864) or text (\"64 MiB\"), or \"1%\" to \"90%\"";

    /// Least amount: a few small regions must fit.
    pub const BYTES_MIN: u64 = 4 << 20;

    /// Whether it is within its bounds.
    #[must_use]
    pub const fn is_allowed(self) -> bool {
        match self {
            Self::Bytes(bytes) => bytes >= Self::BYTES_MIN && bytes <= 1 << 50,
            Self::Percent(percent) => percent >= 1 && percent <= 90,
        }
    }

    /// The amount on a machine with this much memory.
    #[must_use]
    pub const fn bytes(self, machine_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => machine_bytes / 100 * percent as u64,
        }
    }
}

impl fmt::Display for MemoryTotal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Bytes(bytes) => {
                match BYTE_UNITS.iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit)) {
                    Some((name, unit)) => write!(f, "{} {name}", bytes / unit),
                    None => write!(f, "{bytes}"),
                }
            }
        }
    }
}

impl FromStr for MemoryTotal {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let error = || ValueError(Self::NEEDED.to_owned());
        let total = if let Some(percent) = text.strip_suffix('%') {
            Self::Percent(percent.trim().parse().map_err(|_| error())?)
        } else {
            let unit = BYTE_UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)));
            let (number, unit) = unit.unwrap_or((text, 1));
            let number: u64 = number.trim().parse().map_err(|_| error())?;
            Self::Bytes(number.checked_mul(unit).ok_or_else(error)?)
        };
        if total.is_allowed() { Ok(total) } else { Err(error()) }
    }
}

impl Serialize for MemoryTotal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MemoryTotal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u64),
            Text(String),
        }
        let total = match Form::deserialize(deserializer)? {
            Form::Number(bytes) => Some(Self::Bytes(bytes)).filter(|total| total.is_allowed()),
            Form::Text(text) => Self::from_str(&text).ok(),
        };
        total.ok_or_else(|| de::Error::custom(format!("needed: {}", Self::NEEDED)))
    }
}

/// The name of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(pub Name);

impl NodeName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for NodeName {
    type Err = weir_flow::exchange::NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Name::from_str(text).map(Self)
    }
}

as_text!(NodeName, "1 to 64 of A-Z a-z 0-9 . _ -");

/// Where a peer listens: a host name or IP address, with a port. A name is looked up whenever the peer is dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress(String);

impl PeerAddress {
    /// What it looks like.
    pub const NEEDED: &'static str =
        "a host with a port from 1 to 65535, as \"10.0.0.2:7070\" or \"[::1]:7070\"";

    /// The address as text, `HOST:PORT`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for PeerAddress {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let error = || ValueError(Self::NEEDED.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let port: u16 = port.parse().map_err(|_| error())?;
        let is_host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').is_some_and(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok()),
            None => {
                (1..=253).contains(&host.len())
                    && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
            }
        };
        if is_host && port > 0 { Ok(Self(text.to_owned())) } else { Err(error()) }
    }
}

as_text!(PeerAddress, Self::NEEDED);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_read_and_written() {
        for (text, ms, again) in [
            ("100ms", 100, "100ms"),
            ("10s", 10_000, "10s"),
            ("2 min", 120_000, "2min"),
            ("0", 0, "0s"),
            ("1500ms", 1500, "1500ms"),
        ] {
            let span = Span::from_str(text).unwrap();
            assert_eq!(span, Span::from_ms(ms), "{text}");
            assert_eq!(span.to_string(), again);
        }
        for text in ["", "10", "ms", "1.5s", "-1s", "1h", "99999999999999999999ms", "18446744073709551615min"]
        {
            assert!(Span::from_str(text).is_err(), "{text} was taken");
        }
    }

    #[test]
    fn a_memory_total_is_bytes_or_a_share() {
        assert_eq!(MemoryTotal::from_str("10%"), Ok(MemoryTotal::Percent(10)));
        assert_eq!(MemoryTotal::from_str("64 MiB"), Ok(MemoryTotal::Bytes(64 << 20)));
        assert_eq!(MemoryTotal::from_str("2GiB"), Ok(MemoryTotal::Bytes(2 << 30)));
        assert_eq!(MemoryTotal::from_str("8388608"), Ok(MemoryTotal::Bytes(8 << 20)));
        assert_eq!(MemoryTotal::Percent(10).bytes(8 << 30), (8 << 30) / 100 * 10);
        assert_eq!(MemoryTotal::Bytes(64 << 20).to_string(), "64 MiB");
        for text in ["0%", "91%", "300%", "1KiB", "64 MB", "-1", "", "%", "99999999 TiB"] {
            assert!(MemoryTotal::from_str(text).is_err(), "{text} was taken");
        }
    }

    #[test]
    fn a_peer_address_has_a_host_and_a_port() {
        for text in ["10.0.0.2:7070", "node-b.example:1", "[::1]:7070"] {
            assert_eq!(PeerAddress::from_str(text).unwrap().as_str(), text);
        }
        for text in ["", "10.0.0.2", ":7070", "a:0", "a:70000", "a b:1", "::1:7070", "[::x]:1", "[::1:7070"] {
            assert!(PeerAddress::from_str(text).is_err(), "{text} was taken");
        }
    }
}
