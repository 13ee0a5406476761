//! The order of a graph's tasks: who is upstream first, and what goes round in a circle by name.

use std::collections::BTreeSet;

/// What writes what: for each vertex those that come behind it. Vertices are numbers below the length of the list.
pub(super) type Edges = Vec<Vec<usize>>;

/// Every vertex, in an order in which each comes behind all that lead to it, unless these are in a circle with it. Of those
/// that may come next the one with the smallest number does; all of one circle come together, smallest first. Vertices from
/// `named` on are only ways between others, and are left out.
///
/// Takes time in proportion to vertices and edges (and the logarithm of the vertices), whatever the graph.
pub(super) fn upstream_first(next: &Edges, named: usize) -> Vec<usize> {
    let components = components(next);
    let mut component_of = vec![0_usize; next.len()];
    for (component, members) in components.iter().enumerate() {
        for member in members {
            if let Some(place) = component_of.get_mut(*member) {
                *place = component;
            }
        }
    }
    let component_of = |vertex: usize| component_of.get(vertex).copied().unwrap_or_default();
    let leads_to = |component: usize| {
        let members = components.get(component).into_iter().flatten();
        let targets = members.flat_map(|member| next.get(*member).into_iter().flatten());
        targets.map(|target| component_of(*target)).filter(move |target| *target != component)
    };
    let mut waits_for = vec![0_usize; components.len()];
    for target in (0..components.len()).flat_map(leads_to) {
        if let Some(count) = waits_for.get_mut(target) {
            *count += 1;
        }
    }
    // Mere ways have no number of their own and go first: what is behind them may be next.
    let ready_as = |component: usize| {
        let smallest = components.get(component).and_then(|members| members.first()).copied();
        (smallest.filter(|member| *member < named), component)
    };
    let is_free = |(component, count): (usize, &usize)| (*count == 0).then(|| ready_as(component));
    let mut ready: BTreeSet<_> = waits_for.iter().enumerate().filter_map(is_free).collect();
    let mut order = Vec::with_capacity(named);
    while let Some((_, component)) = ready.pop_first() {
        let members = components.get(component).into_iter().flatten().copied();
        order.extend(members.filter(|member| *member < named));
        for target in leads_to(component) {
            if let Some(count) = waits_for.get_mut(target) {
                *count -= 1;
                if *count == 0 {
                    ready.insert(ready_as(target));
                }
            }
        }
    }
    order
}

/// The strongly connected components, each with its members ascending: two passes in depth, as by Kosaraju and Sharir.
fn components(next: &Edges) -> Vec<Vec<usize>> {
    let mut previous: Edges = vec![Vec::new(); next.len()];
    for (vertex, targets) in next.iter().enumerate() {
        for target in targets {
            if let Some(sources) = previous.get_mut(*target) {
                sources.push(vertex);
            }
        }
    }
    let (mut seen, mut finished) = (vec![false; next.len()], Vec::with_capacity(next.len()));
    for root in 0..next.len() {
        walk(next, root, &mut seen, &mut finished);
    }
    let (mut seen, mut components) = (vec![false; next.len()], Vec::new());
    for root in finished.into_iter().rev() {
        let mut members = Vec::new();
        walk(&previous, root, &mut seen, &mut members);
        members.sort_unstable();
        components.extend(Some(members).filter(|members| !members.is_empty()));
    }
    components
}

/// Appends every vertex that can be reached from `root` and was not seen yet, each behind those reached from it.
fn walk(next: &Edges, root: usize, seen: &mut [bool], finished: &mut Vec<usize>) {
    let mut is_new = |vertex: usize| seen.get_mut(vertex).is_some_and(|seen| !std::mem::replace(seen, true));
    let mut path: Vec<(usize, usize)> = Vec::new();
    path.extend(is_new(root).then_some((root, 0)));
    while let Some((vertex, taken)) = path.last_mut() {
        let target = next.get(*vertex).and_then(|targets| targets.get(*taken)).copied();
        *taken += 1;
        match target {
            Some(target) if is_new(target) => path.push((target, 0)),
            Some(_) => {}
            None => {
                finished.push(*vertex);
                path.pop();
            }
        }
    }
}
