//! Texts about ranks that wait for each other.

/// The most ranks that a text names.
const MOST_NAMED: usize = 8;

/// The operation in which a rank waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Send(usize),
    /// A message of a rank, or of any.
    Receive(Option<usize>),
}

impl Wish {
    fn of(self) -> Option<usize> {
        match self {
            Wish::Send(to) => Some(to),
            Wish::Receive(from) => from,
        }
    }
}

/// Names the ranks of a circle that wait for each other, or those on the way to a rank that waits
/// for any, or for one that has ended. `wishes` has `None` for ranks that have ended.
pub fn describe(wishes: &[Option<Wish>]) -> String {
    let mut chain: Vec<(usize, Wish)> = Vec::new();
    let mut next = wishes.iter().position(Option::is_some);
    while let Some((rank, wish)) = next.and_then(|rank| Some((rank, wishes[rank]?))) {
        if let Some(first) = chain.iter().position(|(other, _)| *other == rank) {
            chain.drain(..first);
            break;
        }
        chain.push((rank, wish));
        next = wish.of();
    }
    let text = |(rank, wish): &(usize, Wish)| {
        let ended = wish.of().filter(|of| wishes[*of].is_none());
        let ended = ended.map_or("", |_| ", which has ended");
        match wish {
            Wish::Send(to) => format!("rank {rank} waits to send to rank {to}{ended}"),
            Wish::Receive(None) => format!("rank {rank} waits for a message of any rank"),
            Wish::Receive(Some(from)) => {
                format!("rank {rank} waits for a message of rank {from}{ended}")
            }
        }
    };
    let named: Vec<String> = chain.iter().take(MOST_NAMED).map(text).collect();
    let waiting = wishes.iter().flatten().count();
    let more = match waiting - named.len() {
        0 => String::new(),
        1 => "; 1 other rank waits, too".to_owned(),
        more => format!("; {more} other ranks wait, too"),
    };
    named.join("; ") + &more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_named_without_the_way_to_it() {
        let wishes = [
            Some(Wish::Receive(Some(2))),
            None,
            Some(Wish::Send(3)),
            Some(Wish::Receive(Some(2))),
        ];
        assert_eq!(
            describe(&wishes),
            "rank 2 waits to send to rank 3; rank 3 waits for a message of rank 2; \
             1 other rank waits, too"
        );
    }

    #[test]
    fn a_way_to_a_rank_that_has_ended_is_named() {
        let wishes = [Some(Wish::Receive(Some(1))), Some(Wish::Send(2)), None];
        assert_eq!(
            describe(&wishes),
            "rank 0 waits for a message of rank 1; rank 1 waits to send to rank 2, which has ended"
        );
        let wishes = [None, Some(Wish::Receive(None))];
        assert_eq!(describe(&wishes), "rank 1 waits for a message of any rank");
    }

    #[test]
    fn a_long_circle_is_cut() {
        let wishes: Vec<_> = (0..100)
            .map(|rank| Some(Wish::Send((rank + 1) % 100)))
            .collect();
        let text = describe(&wishes);
        assert!(text.ends_with("rank 7 waits to send to rank 8; 92 other ranks wait, too"));
    }
}
