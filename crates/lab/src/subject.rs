//! What carries the traffic.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::envoy::PROGRAM_SUFFIX;
use crate::hop::Peer;
use crate::scenario::{Hop, Step, Via};

/// The name of the subject without a mesh. Others add latency to its.
pub(crate) const WITHOUT_MESH: &str = "none";
/// The program name that makes this program the floor's relay. A node's proxy is started by a path alone.
pub(crate) const FLOOR_PROGRAM: &str = "leno-lab-floor";
/// The program name that makes this program Envoy's agent.
pub(crate) const ENVOY_PROGRAM: &str = "leno-lab-envoy";

/// Something whose cost is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// No mesh: pods connect directly.
    None,
    /// Two relays without encryption in the place of the node proxies; see [`crate::floor_main`].
    Floor,
    /// Leno's node proxy: this program, or another build of it.
    Leno(Option<PathBuf>),
    /// Another node proxy that speaks the same protocols, such as ztunnel, on every node.
    Ztunnel(PathBuf),
    /// Leno on the first node, another node proxy on the second.
    LenoAndZtunnel(PathBuf),
    /// The other way round.
    ZtunnelAndLeno(PathBuf),
    /// User-space WireGuard between the nodes, such as wireguard-go.
    Wireguard(PathBuf),
    /// Envoy on every node, configured as a node proxy; see [`crate::envoy_main`].
    Envoy(PathBuf),
    /// HAProxy, as a hop.
    Haproxy(PathBuf),
    /// Traefik, as a hop.
    Traefik(PathBuf),
    /// Istio's control plane, where control planes are measured as they are shipped.
    Istiod(PathBuf),
    /// Whatever mesh is installed in a cluster.
    Installed,
}

/// The list for `leno lab list`.
pub const SUBJECTS: [(&str, &str); 12] = [
    ("none", "no mesh: the pods talk to each other directly"),
    ("floor", "the same two hops by relays that only copy: no encryption, no policy, no log"),
    ("leno[=PATH]", "Leno's node proxies: this program, or another build of it"),
    ("ztunnel=PATH", "Istio's node proxies under Leno's control plane: same certificates, rules and topology"),
    ("leno+ztunnel=PATH", "Leno on the client's node, Istio's node proxy on the server's"),
    ("ztunnel+leno=PATH", "Istio's node proxy on the client's node, Leno on the server's"),
    ("wireguard=PATH", "user-space WireGuard between the nodes, such as wireguard-go; not between pods of one node"),
    (
        "envoy=PATH",
        "Envoy 1.37 or later as node proxy: HBONE with the same certificates, rules and topology; L4 only, no policies. In \
         http, as a hop",
    ),
    ("haproxy=PATH", "HAProxy as a hop, for http"),
    ("traefik=PATH", "Traefik 3 as a hop, for http"),
    ("istiod=PATH", "Istio's control plane (pilot-discovery), for many-svc"),
    ("installed", "with --cluster: the mesh that is installed there, Leno or Istio in ambient mode"),
];

impl Subject {
    /// Reads `NAME[=PATH]`.
    ///
    /// # Errors
    /// [`Error::Usage`] for names that are unknown or not supported, and for paths that are no programs.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let (name, path) = text.split_once('=').map_or((text, None), |(name, path)| (name, Some(path)));
        let with_path = |make: fn(PathBuf) -> Self| match path {
            Some(path) => program(name, path).map(make),
            None => {
                Err(Error::Usage(format!("subject {name} needs the path of its program: --subject {name}=/path/to/it")))
            }
        };
        match name {
            "none" | "floor" | "installed" if path.is_some() => {
                Err(Error::Usage(format!("subject {name} takes no program")))
            }
            "none" => Ok(Self::None),
            "floor" => Ok(Self::Floor),
            "installed" => Ok(Self::Installed),
            "leno" => path.map(|path| program(name, path)).transpose().map(Self::Leno),
            "ztunnel" => with_path(Self::Ztunnel),
            "leno+ztunnel" => with_path(Self::LenoAndZtunnel),
            "ztunnel+leno" => with_path(Self::ZtunnelAndLeno),
            "wireguard" => with_path(Self::Wireguard),
            "envoy" => with_path(Self::Envoy),
            "haproxy" => with_path(Self::Haproxy),
            "traefik" => with_path(Self::Traefik),
            "istiod" => with_path(Self::Istiod),
            _ => {
                Err(Error::Usage(format!("there is no subject {name:?}; there are {} (see `leno lab list`)", names())))
            }
        }
    }

    /// Whether the pods are in the mesh.
    #[must_use]
    pub fn is_mesh(&self) -> bool {
        !matches!(self, Self::None | Self::Wireguard(_) | Self::Haproxy(_) | Self::Traefik(_))
    }

    /// Whether a process carries its traffic.
    #[must_use]
    pub fn carries(&self) -> bool {
        *self != Self::None
    }

    /// The path that was given for it.
    pub(crate) fn program(&self) -> Option<&Path> {
        match self {
            Self::None | Self::Floor | Self::Leno(None) | Self::Installed => None,
            Self::Leno(Some(path))
            | Self::Ztunnel(path)
            | Self::LenoAndZtunnel(path)
            | Self::ZtunnelAndLeno(path)
            | Self::Wireguard(path)
            | Self::Envoy(path)
            | Self::Haproxy(path)
            | Self::Traefik(path)
            | Self::Istiod(path) => Some(path),
        }
    }

    /// What that program is expected to be.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::None | Self::Floor | Self::Leno(_) | Self::Installed => "a build of Leno",
            Self::Ztunnel(_) | Self::LenoAndZtunnel(_) | Self::ZtunnelAndLeno(_) => "a ztunnel",
            Self::Wireguard(_) => "user-space WireGuard, such as wireguard-go",
            Self::Envoy(_) => "Envoy, 1.37 or later",
            Self::Haproxy(_) => "HAProxy",
            Self::Traefik(_) => "Traefik, 3 or later",
            Self::Istiod(_) => "Istio's control plane, pilot-discovery",
        }
    }

    /// Why it does not carry traffic within a node. `None` if it does.
    #[must_use]
    pub fn absent_in_node(&self) -> Option<&'static str> {
        match self {
            Self::Wireguard(_) => Some("it leaves what stays on a node as it is, unencrypted"),
            Self::LenoAndZtunnel(_) | Self::ZtunnelAndLeno(_) => Some("within a node there is only one of the two"),
            _ => None,
        }
    }

    /// Why a step does not measure it. `None` if it does.
    #[must_use]
    pub fn absent(&self, step: &Step) -> Option<&'static str> {
        match step.via {
            Via::Hop(hop) => self.absent_as_hop(hop),
            Via::Nodes | Via::Waypoint if matches!(self, Self::Haproxy(_) | Self::Traefik(_)) => {
                Some("it is no proxy of a node")
            }
            Via::Nodes if step.is_to_services() && matches!(self, Self::Floor | Self::Envoy(_)) => {
                Some("as a node's proxy it knows no services")
            }
            Via::Nodes if step.crosses_nodes() => None,
            Via::Nodes => self.absent_in_node(),
            Via::Waypoint => match self {
                Self::Floor | Self::Envoy(_) | Self::Wireguard(_) => Some("as a node's proxy it knows no waypoints"),
                _ => None,
            },
        }
    }

    fn absent_as_hop(&self, hop: Hop) -> Option<&'static str> {
        match self {
            Self::None | Self::Envoy(_) | Self::Haproxy(_) => None,
            Self::Traefik(_) if hop.pair => Some("its proxies would have to accept any certificate of each other"),
            Self::Traefik(_) => None,
            Self::Leno(_) if hop.pair => Some("its pair has a waypoint in between, which path/waypoint measures"),
            Self::Leno(_) => None,
            _ => Some("it is no hop by itself"),
        }
    }

    /// Whether a step measures it.
    #[must_use]
    pub fn covers(&self, step: &Step) -> bool {
        self.absent(step).is_none()
    }

    /// The program that is a hop, if it is one of others' making.
    pub(crate) fn peer(&self) -> Option<Peer<'_>> {
        match self {
            Self::Envoy(path) => Some(Peer::Envoy(path)),
            Self::Haproxy(path) => Some(Peer::Haproxy(path)),
            Self::Traefik(path) => Some(Peer::Traefik(path)),
            _ => None,
        }
    }

    /// Whether bytes between nodes must be encrypted. Every round checks it.
    #[must_use]
    pub fn encrypts(&self) -> bool {
        !matches!(self, Self::None | Self::Floor)
    }

    /// The program of the control plane, if one is measured. `this` is the program that runs the lab.
    ///
    /// # Errors
    /// [`Error::Usage`] for subjects that are no control plane, or whose feed is not supported yet.
    pub(crate) fn control_plane<'a>(&'a self, this: &'a Path) -> Result<&'a Path, Error> {
        match self {
            Self::Leno(path) => Ok(path.as_deref().unwrap_or(this)),
            other => Err(Error::Usage(format!(
                "churn measures control planes: subject leno, or leno=PATH for another build of it; {other} is none that \
                 the lab can feed"
            ))),
        }
    }

    /// The program of the control plane, where it is measured as it is shipped; `this` is the program that runs the lab.
    ///
    /// # Errors
    /// [`Error::Usage`] for subjects that are none.
    pub(crate) fn real_control_plane<'a>(&'a self, this: &'a Path) -> Result<&'a Path, Error> {
        match self {
            Self::Leno(path) => Ok(path.as_deref().unwrap_or(this)),
            Self::Istiod(path) => Ok(path),
            other => Err(Error::Usage(format!(
                "many-svc measures control planes: subject leno, leno=PATH for another build of it, or istiod=PATH; {other} \
                 is none"
            ))),
        }
    }

    /// Whether it can carry the traffic of pods.
    ///
    /// # Errors
    /// [`Error::Usage`] for control planes.
    pub(crate) fn has_proxies(&self) -> Result<(), Error> {
        match self {
            Self::Istiod(_) => {
                Err(Error::Usage("subject istiod is a control plane: it has a part in many-svc alone".to_owned()))
            }
            Self::Installed => Err(Error::Usage(
                "subject installed is the mesh of a Kubernetes cluster: give --cluster, or name a mesh".to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// The program of each node's proxy. The floor's is a link in `scratch`.
    ///
    /// # Errors
    /// When the link can't be made.
    pub(crate) fn proxies(&self, this: &Path, scratch: &Path) -> Result<BTreeMap<String, PathBuf>, Error> {
        let each = |paths: [&Path; 2]| -> BTreeMap<String, PathBuf> {
            ["node-1", "node-2"].into_iter().zip(paths).map(|(node, path)| (node.to_owned(), path.to_owned())).collect()
        };
        let both = |path: &Path| each([path, path]);
        let link = |name: &str, program: &Path| {
            let link = scratch.join(name);
            if !link.exists() {
                symlink(program, &link).map_err(Error::io(format!("cannot create {}", link.display())))?;
            }
            Ok::<_, Error>(link)
        };
        Ok(match self {
            Self::Leno(None) => both(this),
            Self::Leno(Some(path)) | Self::Ztunnel(path) => both(path),
            Self::LenoAndZtunnel(path) => each([this, path]),
            Self::ZtunnelAndLeno(path) => each([path, this]),
            // The stage needs a proxy on each node even without work for it. This one costs least.
            Self::None
            | Self::Floor
            | Self::Wireguard(_)
            | Self::Haproxy(_)
            | Self::Traefik(_)
            | Self::Istiod(_)
            | Self::Installed => both(&link(FLOOR_PROGRAM, this)?),
            Self::Envoy(path) => {
                link(&format!("{ENVOY_PROGRAM}{PROGRAM_SUFFIX}"), path)?;
                both(&link(ENVOY_PROGRAM, this)?)
            }
        })
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Floor => f.write_str("floor"),
            Self::Leno(None) => f.write_str("leno"),
            Self::Leno(Some(path)) => write!(f, "leno={}", path.display()),
            Self::Ztunnel(_) => f.write_str("ztunnel"),
            Self::LenoAndZtunnel(_) => f.write_str("leno+ztunnel"),
            Self::ZtunnelAndLeno(_) => f.write_str("ztunnel+leno"),
            Self::Wireguard(_) => f.write_str("wireguard"),
            Self::Envoy(_) => f.write_str("envoy"),
            Self::Haproxy(_) => f.write_str("haproxy"),
            Self::Traefik(_) => f.write_str("traefik"),
            Self::Istiod(_) => f.write_str("istiod"),
            Self::Installed => f.write_str("installed"),
        }
    }
}

fn names() -> String {
    SUBJECTS.map(|(name, _)| name).join(", ")
}

fn program(name: &str, path: &str) -> Result<PathBuf, Error> {
    if path.is_empty() {
        return Err(Error::Usage(format!(
            "subject {name}: there is no path after the `=`; write --subject {name}=/path/to/it"
        )));
    }
    let wrong = |why: String| Error::Usage(format!("subject {name}: {path} {why}"));
    // The proxy is started in another directory, where a relative path must still mean the same file.
    let path = std::fs::canonicalize(path).map_err(|error| wrong(format!("cannot be used: {error}")))?;
    let metadata = std::fs::metadata(&path).map_err(|error| wrong(format!("cannot be used: {error}")))?;
    if !metadata.is_file() {
        return Err(wrong("is not a program: it must be a file, and executable".to_owned()));
    }
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(wrong(format!(
            "is not a program: it is not executable, which `chmod +x {}` makes it",
            path.display()
        )));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Size, find};

    fn refusal(text: &str) -> String {
        Subject::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn names_and_programs() {
        let sh = std::fs::canonicalize("/bin/sh").unwrap();
        assert_eq!(Subject::parse("none").unwrap(), Subject::None);
        assert_eq!(Subject::parse("leno").unwrap(), Subject::Leno(None));
        assert_eq!(Subject::parse("ztunnel=/bin/sh").unwrap(), Subject::Ztunnel(sh.clone()));
        assert_eq!(Subject::parse("leno=/bin/sh").unwrap(), Subject::Leno(Some(sh)));
        assert!(refusal("ztunnel").contains("--subject ztunnel=/path/to/it"));
        assert!(refusal("ztunnel=/nowhere").contains("/nowhere cannot be used"));
        assert!(refusal("ztunnel=/tmp").contains("must be a file"));
        assert!(refusal("ztunnel=/etc/passwd").contains("chmod +x /etc/passwd"));
        for name in ["ztunnel", "leno", "envoy"] {
            assert!(refusal(&format!("{name}=")).contains(&format!("write --subject {name}=/path/to/it")));
        }
        assert!(refusal("none=/bin/sh").contains("takes no program"));
        assert!(refusal("envoy").contains("--subject envoy=/path/to/it"));
        for unknown in ["ztunel=/bin/sh", "ztunel=/nowhere", "", "=/bin/sh", "leno["] {
            assert!(refusal(unknown).contains("there are none, floor"), "{unknown}");
        }
        for (name, _) in SUBJECTS {
            let known = Subject::parse(&name.replace("[=PATH]", "").replace("PATH", "/bin/sh")).unwrap();
            assert!(known.to_string().starts_with(name.split(['[', '=']).next().unwrap()), "{name}");
        }
    }

    #[test]
    fn who_knows_no_services_is_asked_for_none() {
        let steps = |scenario: &str| find(scenario, Size::Full).unwrap().steps;
        let http = steps("http");
        let absent = |subject: &str, step: &str| {
            let step = http.iter().find(|it| it.name.starts_with(step)).unwrap();
            Subject::parse(subject).unwrap().absent(step).unwrap_or_default()
        };
        for subject in ["floor", "envoy=/bin/sh"] {
            assert!(absent(subject, "path/l4/").contains("knows no services"), "{subject}");
            assert!(absent(subject, "path/waypoint/").contains("knows no waypoints"), "{subject}");
        }
        for subject in ["none", "leno", "ztunnel=/bin/sh"] {
            assert_eq!(absent(subject, "path/l4/"), "", "{subject}");
        }
        assert_eq!(absent("envoy=/bin/sh", "hop/plain"), "");
        assert!(steps("latency").iter().all(|step| Subject::Floor.covers(step)));
    }

    #[test]
    fn mixed_nodes() {
        let scratch = tempfile::tempdir().unwrap();
        let order = |name: &str| {
            let proxies = Subject::parse(name).unwrap().proxies(Path::new("/this"), scratch.path()).unwrap();
            ["node-1", "node-2"].map(|node| proxies[node] == Path::new("/this"))
        };
        assert_eq!([order("leno+ztunnel=/bin/sh"), order("ztunnel+leno=/bin/sh")], [[true, false], [false, true]]);
    }

    #[test]
    fn the_floor_is_this_program_by_another_name() {
        let scratch = tempfile::tempdir().unwrap();
        let proxies = Subject::Floor.proxies(Path::new("/bin/sh"), scratch.path()).unwrap();
        assert_eq!(proxies.len(), 2);
        for path in proxies.values() {
            assert_eq!(path.file_name().unwrap(), FLOOR_PROGRAM);
            assert_eq!(std::fs::read_link(path).unwrap(), Path::new("/bin/sh"));
        }
    }
}
