//! Scripted network port events.

use std::collections::BTreeMap;
use std::time::Duration;

use datadriven::TestCase;
use paceline_health::event::{Event, PortLink, PortReading};
use paceline_health::{Frame, Time};

use super::counters::others;
use super::script::{Script, take};

impl Script {
    /// Handles the command `port nodes=(n0,n1) name=mlx5_0.1 [link=roce] [for=10] up=1 rate_bps=4e11 link_downs=2`. It
    /// creates readings once a second of the same port of each node. A dot replaces the slash in a port's name.
    pub fn port(&mut self, case: &mut TestCase) -> Result<Vec<(Time, Frame)>, String> {
        let nodes: Vec<String> = case.take_args("nodes").map_err(|error| error.to_string())?;
        let name: String = take(case, "name")?.ok_or("name= is missing")?;
        let name = name.replace('.', "/");
        let link = match take::<String>(case, "link")?.as_deref() {
            None | Some("infiniband") => PortLink::Infiniband,
            Some("roce") => PortLink::Roce,
            Some("efa") => PortLink::Efa,
            Some("ethernet") => PortLink::Ethernet,
            Some(other) => return Err(format!("link={other}?")),
        };
        let seconds: u32 = take(case, "for")?.unwrap_or(1);
        let mut readings = BTreeMap::new();
        others(case, &mut readings)?;
        let mut frames = Vec::new();
        for _ in 0..seconds {
            self.at = self.at + Duration::from_secs(1);
            for node in &nodes {
                let event = Event::Port(PortReading {
                    port: name.as_str().into(),
                    link,
                    readings: readings.clone(),
                });
                frames.push((self.at, self.frame(node, event)));
            }
        }
        Ok(frames)
    }
}
