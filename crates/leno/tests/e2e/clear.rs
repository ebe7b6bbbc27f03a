//! Looks for a word in all that passes the links of a stage. In the mesh nobody can read it there.

use leno_capture::NetworkNamespace;
use leno_capture::sniff::{Seen, Sniffer};

use crate::stage::{Stage, eventually};

/// What pods of the mesh say to one another while a [`Watch`] looks.
pub(crate) const CANARY: &str = "canary-6f1e0b";
/// What a pod outside the mesh says after it, where all can read it.
const MARK: &str = "mark-of-the-end";

/// Looks at every link of every node, so also at what pods of one node say to one another, and at the links between the nodes.
/// What stays inside a pod is not seen: there programs and their proxy speak in the clear.
pub(crate) struct Watch {
    places: Vec<Place>,
    /// Where pods outside the mesh are answered: on another node than `plain/outsider`.
    plain: &'static str,
}

/// The links of one network namespace.
struct Place {
    name: String,
    canary: Sniffer,
    mark: Sniffer,
}

impl Watch {
    /// Begins. `plain` is the address of a server outside the mesh, on another node than `plain/outsider`, such as
    /// `echo.plain:7000`.
    #[track_caller]
    pub(crate) fn begin(stage: &Stage, plain: &'static str) -> Self {
        let nodes = stage.ps()["nodes"].as_array().unwrap().clone();
        let nodes = nodes.iter().map(|node| node["name"].as_str().unwrap());
        let places = nodes.chain(["fabric"]).map(|name| {
            let namespace = NetworkNamespace::from_path(format!("/run/netns/{}", stage.netns(name))).unwrap();
            let [canary, mark] = [CANARY, MARK].map(|word| Sniffer::start(&namespace, None, word.as_bytes()).unwrap());
            Place { name: name.to_owned(), canary, mark }
        });
        Self { places: places.collect(), plain }
    }

    /// How often the word was seen. A mark is sent after it, in the clear and from one node to another: once it was seen
    /// everywhere, so was all that passed before, and every place is known to be looked at.
    #[track_caller]
    pub(crate) fn count(self, stage: &Stage) -> u64 {
        eventually("the mark on every link", || {
            let plain = self.plain;
            stage.sh("plain/outsider", &format!("echo {MARK} | socat -t 3 - TCP:{plain},connect-timeout=5"));
            let blind = self.places.iter().find(|place| place.mark.seen().canaries == 0);
            blind.map_or(Ok(()), |place| Err(format!("nothing of it in {}", place.name)))
        });
        let seen = self.places.into_iter().map(|Place { name, canary, .. }| {
            let Seen { canaries, dropped, .. } = canary.stop().unwrap();
            assert_eq!(dropped, 0, "packets of {name} were not looked at");
            canaries
        });
        seen.sum()
    }

    /// Nobody could read the word.
    #[track_caller]
    pub(crate) fn end(self, stage: &Stage) {
        assert_eq!(self.count(stage), 0, "what is said in the mesh could be read on a link");
    }
}
