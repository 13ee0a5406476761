//! Which producers feed which consumers, for each ship strategy.

use proptest::prelude::*;
use weir_flow::exchange::{STRATEGIES, Shape, Strategy as ShipStrategy, Wiring};
use weir_flow::ids::{ConsumerIndex, ProducerIndex, SubpartitionIndex};

fn shape(strategy: ShipStrategy, producers: u32, consumers: u32) -> Shape {
    Shape { producers, consumers, strategy, segment_bytes: 4096, checksum: false }
}

/// For each producer the consumers that it feeds, in the order of its subpartitions.
fn fed(shape: &Shape) -> Vec<Vec<u32>> {
    let of = |producer| {
        let subpartitions = shape.subpartitions(ProducerIndex(producer));
        let consumer =
            |subpartition| shape.consumer_at(ProducerIndex(producer), SubpartitionIndex(subpartition)).0;
        (0..subpartitions).map(consumer).collect()
    };
    (0..shape.producers).map(of).collect()
}

/// Flink's loop, as it stands: over consumers when there are no more of them than producers, otherwise over producers.
#[allow(clippy::manual_div_ceil)] // As Flink writes it.
fn fed_by_flink(producers: u32, consumers: u32) -> Vec<Vec<u32>> {
    let mut fed = vec![Vec::new(); producers as usize];
    if producers >= consumers {
        for consumer in 0..consumers {
            let (start, end) = (consumer * producers / consumers, (consumer + 1) * producers / consumers);
            (start..end).for_each(|producer| fed[producer as usize].push(consumer));
        }
    } else {
        for producer in 0..producers {
            let start = (producer * consumers + producers - 1) / producers;
            let end = ((producer + 1) * consumers + producers - 1) / producers;
            fed[producer as usize].extend(start..end);
        }
    }
    fed
}

// Worked out by hand from the description of Flink's division.
#[test]
fn rescale_joins_the_same_neighbours_as_flink() {
    let table: [(u32, u32, &[&[u32]]); 11] = [
        (1, 1, &[&[0]]),
        (1, 3, &[&[0, 1, 2]]),
        (3, 1, &[&[0], &[0], &[0]]),
        (2, 4, &[&[0, 1], &[2, 3]]),
        (4, 2, &[&[0], &[0], &[1], &[1]]),
        (2, 3, &[&[0, 1], &[2]]),
        (3, 2, &[&[0], &[1], &[1]]),
        (3, 7, &[&[0, 1, 2], &[3, 4], &[5, 6]]),
        (7, 3, &[&[0], &[0], &[1], &[1], &[2], &[2], &[2]]),
        (4, 6, &[&[0, 1], &[2], &[3, 4], &[5]]),
        (6, 4, &[&[0], &[1], &[1], &[2], &[3], &[3]]),
    ];
    for (producers, consumers, expected) in table {
        let found = fed(&shape(ShipStrategy::Rescale, producers, consumers));
        assert_eq!(found, expected, "{producers} producers for {consumers} consumers");
    }
    for producers in 1..=40 {
        for consumers in 1..=40 {
            let found = fed(&shape(ShipStrategy::Rescale, producers, consumers));
            assert_eq!(found, fed_by_flink(producers, consumers), "{producers} for {consumers}");
        }
    }
}

#[test]
fn the_other_strategies_join_one_to_one_or_all_with_all() {
    for strategy in STRATEGIES {
        let expected: Vec<Vec<u32>> = match strategy.wiring() {
            Wiring::OneToOne | Wiring::Pointwise => (0..4).map(|index| vec![index]).collect(),
            Wiring::AllToAll => vec![vec![0, 1, 2, 3]; 4],
        };
        assert_eq!(fed(&shape(strategy, 4, 4)), expected, "{strategy}");
    }
    let builders = |strategy| shape(strategy, 2, 4).builders(ProducerIndex(0));
    assert_eq!(builders(ShipStrategy::Broadcast), 1, "all consumers get the same");
    assert_eq!(builders(ShipStrategy::Rebalance), 4);
    assert_eq!(builders(ShipStrategy::Rescale), 2);
}

#[test]
fn names_and_numbers_are_each_others_inverse() {
    for strategy in STRATEGIES {
        assert_eq!(strategy.as_str().parse(), Ok(strategy));
        assert_eq!(ShipStrategy::from_wire(strategy as u8), Some(strategy));
    }
    let numbers = STRATEGIES.map(|strategy| (strategy.as_str(), strategy as u8));
    let settled =
        [("forward", 1), ("rebalance", 2), ("hash", 3), ("broadcast", 4), ("rescale", 5), ("custom", 6)];
    assert_eq!(numbers, settled, "numbers of the wire are never given anew");
    assert_eq!(
        "hsah".parse::<ShipStrategy>().unwrap_err().to_string(),
        "unknown strategy; needed: forward, rebalance, hash, broadcast, rescale, custom"
    );
    let interchangeable = STRATEGIES.map(ShipStrategy::has_interchangeable_consumers);
    assert_eq!(interchangeable, [false, true, false, false, true, false]);
}

proptest! {
    #[test]
    fn both_ends_of_every_channel_name_it_alike(
        strategy in prop::sample::select(STRATEGIES.to_vec()),
        producers in 1..=4096_u32,
        consumers in 1..=4096_u32,
        picks in prop::collection::vec((any::<u32>(), any::<u32>()), 50),
    ) {
        let consumers = if strategy == ShipStrategy::Forward { producers } else { consumers };
        let shape = shape(strategy, producers, consumers);
        for (producer, consumer) in picks {
            let (producer, consumer) = (ProducerIndex(producer % producers), ConsumerIndex(consumer % consumers));
            let subpartition = shape.subpartition(producer, consumer);
            let channel = shape.channel(consumer, producer);
            prop_assert_eq!(subpartition.is_some(), channel.is_some());
            if let (Some(subpartition), Some(channel)) = (subpartition, channel) {
                prop_assert!(subpartition.0 < shape.subpartitions(producer) && channel < shape.channels(consumer));
                prop_assert_eq!(shape.consumer_at(producer, subpartition), consumer);
                prop_assert_eq!(shape.producer_at(consumer, channel), producer);
            }
            // Everybody has somebody.
            prop_assert!(shape.subpartitions(producer) >= 1 && shape.channels(consumer) >= 1);
            let first = shape.consumer_at(producer, SubpartitionIndex(0));
            prop_assert_eq!(shape.subpartition(producer, first), Some(SubpartitionIndex(0)));
            let first = shape.producer_at(consumer, 0);
            prop_assert_eq!(shape.channel(consumer, first), Some(0));
        }
    }

    #[test]
    fn numbers_that_nobody_has_are_refused_and_harm_nothing(
        strategy in prop::sample::select(STRATEGIES.to_vec()),
        (producers, consumers) in (any::<u32>(), any::<u32>()),
        (producer, consumer) in (any::<u32>(), any::<u32>()),
    ) {
        let shape = shape(strategy, producers, consumers);
        let (producer, consumer) = (ProducerIndex(producer), ConsumerIndex(consumer));
        let _ = (shape.subpartitions(producer), shape.builders(producer), shape.channels(consumer));
        let _ = (shape.consumer_at(producer, SubpartitionIndex(u32::MAX)), shape.producer_at(consumer, u32::MAX));
        if producer.0 >= producers || consumer.0 >= consumers {
            prop_assert_eq!(shape.subpartition(producer, consumer), None);
            prop_assert_eq!(shape.channel(consumer, producer), None);
        }
    }
}
