use control_api::v1alpha1::{NodeSpec, NodeStatus, RawTask};

use super::*;

pub(crate) fn node(namespace: &str, name: &str, labels: &[(&str, &str)]) -> Node {
    let mut node =
        Node::new(name, NodeSpec { agent_type: Some(AgentType::Raw), unschedulable: false });
    node.metadata.namespace = Some(namespace.to_owned());
    node.metadata.labels =
        Some(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
    node.status = Some(NodeStatus { phase: Some(NodePhase::Online), ..NodeStatus::default() });
    node
}

fn spec(selector: &[(&str, &str)]) -> TaskSpec {
    TaskSpec {
        agent_type: Some(AgentType::Raw),
        node_selector: selector.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
        ..TaskSpec::default()
    }
}

fn nodes(list: Vec<Node>) -> Vec<Arc<Node>> {
    list.into_iter().map(Arc::new).collect()
}

#[test]
fn all_keys_must_match_and_a_comma_list_is_one_of() {
    let all = nodes(vec![
        node("rlark-a", "n1", &[("site", "cloud")]),
        node("rlark-b", "n2", &[("site", "edge"), ("gpu", "l4")]),
    ]);
    let p = place(&spec(&[("site", "lab, edge"), ("gpu", "l4")]), &all, &Load::default()).unwrap();
    assert_eq!((p.namespace.as_str(), p.node.as_deref()), ("rlark-b", Some("n2")));
    assert!(place(&spec(&[("site", "cloud"), ("gpu", "l4")]), &all, &Load::default()).is_err());
}

#[test]
fn the_refusal_names_the_selector_and_the_reasons() {
    let mut off = node("rlark-a", "off", &[("site", "edge")]);
    off.status.as_mut().unwrap().phase = Some(NodePhase::Offline);
    let mut cordoned = node("rlark-a", "cordoned", &[("site", "edge")]);
    cordoned.spec.unschedulable = true;
    let mut docker = node("rlark-a", "docker", &[("site", "edge")]);
    docker.spec.agent_type = Some(AgentType::Docker);
    let all = nodes(vec![off, cordoned, docker, node("rlark-a", "n", &[("site", "cloud")])]);
    let e = place(&spec(&[("site", "edge")]), &all, &Load::default()).unwrap_err().to_string();
    assert_eq!(
        e,
        "no Raw node matches nodeSelector site=edge: of 4 nodes 1 of another agent type, \
         1 without these labels, 1 not online, 1 unschedulable"
    );
}

#[test]
fn an_empty_selector_takes_any_node_of_the_type() {
    let all = nodes(vec![node("rlark-a", "n", &[])]);
    assert!(place(&spec(&[]), &all, &Load::default()).is_ok());
}

#[test]
fn tasks_spread_over_equal_nodes() {
    let all = nodes(vec![node("rlark-a", "n2", &[]), node("rlark-a", "n1", &[])]);
    let mut load = Load::default();
    let mut got = Vec::new();
    for _ in 0..4 {
        let p = place(&spec(&[]), &all, &load).unwrap();
        load.add(&p);
        got.push(p.node.unwrap());
    }
    assert_eq!(got, ["n1", "n2", "n1", "n2"]);
}

#[test]
fn a_kubernetes_task_goes_to_the_site_where_most_nodes_match() {
    let mut list =
        vec![node("rlark-a", "x", &[]), node("rlark-b", "y", &[]), node("rlark-b", "z", &[])];
    for n in &mut list {
        n.spec.agent_type = Some(AgentType::Kubernetes);
    }
    let spec = TaskSpec { agent_type: Some(AgentType::Kubernetes), ..TaskSpec::default() };
    let p = place(&spec, &nodes(list), &Load::default()).unwrap();
    assert_eq!(p, Place { namespace: "rlark-b".into(), node: None });
}

#[test]
fn a_task_for_the_machines_network_goes_where_it_is_allowed_and_else_where_it_is_refused() {
    let closed = || node("rlark-a", "n1", &[("rlark.io/host-network", "false")]);
    let older = || node("rlark-a", "n2", &[]);
    let open = || node("rlark-a", "n3", &[("rlark.io/host-network", "true")]);
    let of = |host_network: bool, all: Vec<Node>| {
        let raw = Some(RawTask { host_network, ..RawTask::default() });
        place(&TaskSpec { raw, ..spec(&[]) }, &nodes(all), &Load::default()).unwrap().node.unwrap()
    };
    assert_eq!(of(true, vec![closed(), older(), open()]), "n3");
    assert_eq!(of(true, vec![older(), closed()]), "n1");
    assert_eq!(of(false, vec![closed(), older(), open()]), "n1");
}
