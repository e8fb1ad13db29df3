//! The objects and their changes. One revision counts all changes, and the last changes are kept for watches.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::failure::{Answer, Failure};
use crate::keep::Keep;

/// Number of changes that are kept for watches.
const KEPT: usize = 50_000;

/// Group and plural.
pub type Resource = (String, String);

/// The place of an object. The namespace is empty for cluster-scoped objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The object's group and plural.
    pub resource: Resource,
    /// The object's namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

impl Place {
    /// Builds a place from its parts.
    pub fn new(group: &str, plural: &str, namespace: &str, name: &str) -> Place {
        Place {
            resource: (group.to_owned(), plural.to_owned()),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

/// An object before and after.
#[derive(Clone, Debug)]
pub struct Change {
    /// The change's revision.
    pub revision: u64,
    /// The object's place.
    pub place: Place,
    /// The object before the change; `None` if it was created.
    pub before: Option<Arc<Value>>,
    /// The object, or its last state if it was deleted.
    pub object: Arc<Value>,
    /// True if the object was deleted.
    pub is_gone: bool,
}

/// The objects and their changes; see the module documentation.
#[derive(Debug)]
pub struct Store {
    objects: BTreeMap<Place, Arc<Value>>,
    changes: VecDeque<Change>,
    /// The revision of the last change that is no longer kept.
    forgotten: u64,
    revision: watch::Sender<u64>,
    /// Objects by the uids of their owners. Without this index, each change would require a scan of all objects.
    owned: HashMap<String, BTreeSet<Place>>,
    /// Objects that may be orphaned, because they or their owners changed.
    doubted: BTreeSet<Place>,
    keep: Option<Keep>,
}

impl Default for Store {
    fn default() -> Store {
        Store {
            objects: BTreeMap::new(),
            changes: VecDeque::new(),
            forgotten: 0,
            // Starts above zero, like a cluster with some history.
            revision: watch::Sender::new(1000),
            owned: HashMap::new(),
            doubted: BTreeSet::new(),
            keep: None,
        }
    }
}

/// Returns the stored form of a change.
fn line(place: &Place, object: &Value, is_gone: bool) -> Value {
    let (group, plural) = &place.resource;
    json!({ "at": [group, plural, place.namespace, place.name], "object": object, "is_gone": is_gone })
}

fn owners(object: &Value) -> impl Iterator<Item = &str> {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners
        .into_iter()
        .flatten()
        .filter_map(|owner| owner["uid"].as_str())
}

impl Store {
    /// Returns the current revision.
    pub fn revision(&self) -> u64 {
        *self.revision.borrow()
    }

    /// Returns a receiver that gets each new revision.
    pub fn listen(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// Returns the object at a place, if there is one.
    pub fn at(&self, place: &Place) -> Option<Arc<Value>> {
        self.objects.get(place).cloned()
    }

    /// Returns the object at a place.
    ///
    /// # Errors
    /// Returns NotFound if there is no object.
    pub fn find(&self, place: &Place) -> Answer<Arc<Value>> {
        self.at(place)
            .ok_or_else(|| Failure::not_found(&place.resource.1, &place.name))
    }

    /// Returns all objects of a kind, in a namespace or everywhere, ordered by name.
    pub fn all<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a Place, &'a Arc<Value>)> {
        let from = Place {
            resource: resource.clone(),
            namespace: namespace.unwrap_or("").to_owned(),
            name: String::new(),
        };
        self.objects.range(from..).take_while(move |(place, _)| {
            place.resource == *resource && namespace.is_none_or(|namespace| place.namespace == namespace)
        })
    }

    /// Returns the objects of a kind after this place.
    pub fn after<'a>(&'a self, place: &'a Place) -> impl Iterator<Item = (&'a Place, &'a Arc<Value>)> {
        let rest = (std::ops::Bound::Excluded(place), std::ops::Bound::Unbounded);
        let rest = self.objects.range::<Place, _>(rest);
        rest.take_while(|(other, _)| other.resource == place.resource)
    }

    /// Returns all objects.
    pub fn everything(&self) -> impl Iterator<Item = (&Place, &Arc<Value>)> {
        self.objects.iter()
    }

    /// Stores an object, which gets a new revision.
    pub fn put(&mut self, place: &Place, mut object: Value) -> Arc<Value> {
        let revision = self.revision() + 1;
        object["metadata"]["resourceVersion"] = json!(revision.to_string());
        let object = Arc::new(object);
        let before = self.objects.insert(place.clone(), Arc::clone(&object));
        self.owned_by(place, before.as_deref(), Some(&object));
        self.changed(Change {
            revision,
            place: place.clone(),
            before,
            object: Arc::clone(&object),
            is_gone: false,
        });
        object
    }

    /// Deletes an object.
    pub fn remove(&mut self, place: &Place) -> Option<Arc<Value>> {
        let before = self.objects.remove(place)?;
        self.owned_by(place, Some(&before), None);
        let own = before["metadata"]["uid"].as_str().unwrap_or("");
        if let Some(left) = self.owned.get(own) {
            self.doubted.extend(left.iter().cloned());
        }
        let revision = self.revision() + 1;
        let mut object = Value::clone(&before);
        object["metadata"]["resourceVersion"] = json!(revision.to_string());
        let object = Arc::new(object);
        self.changed(Change {
            revision,
            place: place.clone(),
            before: Some(before),
            object: Arc::clone(&object),
            is_gone: true,
        });
        Some(object)
    }

    fn owned_by(&mut self, place: &Place, before: Option<&Value>, after: Option<&Value>) {
        for uid in before.into_iter().flat_map(owners) {
            if let Some(places) = self.owned.get_mut(uid) {
                places.remove(place);
                if places.is_empty() {
                    self.owned.remove(uid);
                }
            }
        }
        for uid in after.into_iter().flat_map(owners) {
            self.owned
                .entry(uid.to_owned())
                .or_default()
                .insert(place.clone());
            self.doubted.insert(place.clone());
        }
    }

    /// Returns an object whose owners must be checked. Each object is returned once.
    pub fn next_doubted(&mut self) -> Option<Place> {
        self.doubted.pop_first()
    }

    /// Marks all objects with owners to be checked again, since more owners are known now.
    pub fn doubt_all(&mut self) {
        self.doubted.extend(self.owned.values().flatten().cloned());
    }

    /// Starts to write changes to a file. If the file is new, the existing objects are written first.
    pub fn keep_in(&mut self, keep: Keep, is_new: bool) {
        if is_new {
            for (place, object) in &self.objects {
                keep.write(&line(place, object, false));
            }
        }
        self.keep = Some(keep);
    }

    /// Writes another line to the file.
    pub fn note(&self, line: &Value) {
        if let Some(keep) = &self.keep {
            keep.write(line);
        }
    }

    /// Restores a stored change. Earlier changes are not available to watches. Returns `None` if the line is not a
    /// change.
    pub fn restore(&mut self, line: &Value) -> Option<()> {
        let [group, plural, namespace, name] = line["at"].as_array()?.as_slice() else {
            return None;
        };
        let place = Place::new(
            group.as_str()?,
            plural.as_str()?,
            namespace.as_str()?,
            name.as_str()?,
        );
        let object = &line["object"];
        let revision = object["metadata"]["resourceVersion"].as_str()?.parse().ok()?;
        let before = self.objects.remove(&place);
        self.owned_by(&place, before.as_deref(), None);
        if line["is_gone"] != true {
            self.owned_by(&place, None, Some(object));
            self.objects.insert(place, Arc::new(object.clone()));
        }
        self.revision.send_replace(revision);
        self.forgotten = revision;
        Some(())
    }

    fn changed(&mut self, change: Change) {
        let revision = change.revision;
        self.note(&line(&change.place, &change.object, change.is_gone));
        self.changes.push_back(change);
        if self.changes.len() > KEPT
            && let Some(oldest) = self.changes.pop_front()
        {
            self.forgotten = oldest.revision;
        }
        self.revision.send_replace(revision);
    }

    /// Returns the changes after this revision.
    ///
    /// # Errors
    /// Returns Expired if some of them are no longer kept.
    pub fn since(&self, revision: u64) -> Answer<Vec<Change>> {
        if revision < self.forgotten {
            return Err(Failure::new(
                "Expired",
                format!("too old resource version: {revision} ({})", self.forgotten),
            ));
        }
        let from = self.changes.partition_point(|change| change.revision <= revision);
        Ok(self.changes.range(from..).cloned().collect())
    }

    /// Drops all changes, as etcd does every five minutes.
    pub fn compact(&mut self) {
        self.changes.clear();
        self.forgotten = self.revision();
    }
}
