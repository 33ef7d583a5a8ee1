//! Single commands, and their counters.

use super::*;

/// Sends lines to a fresh server, and compares each answer with the line beside it.
#[track_caller]
pub(super) fn dialogue(lines: &[(&str, &str)]) {
    let ends = |line: &str| line.replace('\n', "\r\n") + "\r\n";
    let said: String = lines.iter().map(|(said, _)| ends(said)).collect();
    let expected = lines.iter().filter(|(_, reply)| !reply.is_empty());
    let expected: String = expected.map(|(_, reply)| ends(reply)).collect();
    assert_eq!(answers(said.as_bytes()), expected);
}

#[test]
fn values_are_stored_conditionally() {
    dialogue(&[
        ("replace a 0 0 1\nx", "NOT_STORED"),
        ("append a 0 0 1\nx", "NOT_STORED"),
        ("cas a 0 0 1 1\nx", "NOT_FOUND"),
        ("add a 5 0 1\nb", "STORED"),
        ("add a 0 0 1\nx", "NOT_STORED"),
        ("append a 9 0 1\nc", "STORED"),
        ("prepend a 9 0 1 noreply\na", ""),
        ("gets a", "VALUE a 5 3 3\nabc\nEND"),
        ("cas a 0 0 1 2\nx", "EXISTS"),
        ("cas a 0 0 1 3\ny", "STORED"),
        ("set a 0 0 noreply", ""),
        ("cas a 0 0 1", "ERROR"),
    ]);
}

#[test]
fn incr_wraps_and_decr_stops_at_zero() {
    dialogue(&[
        ("incr n 1", "NOT_FOUND"),
        ("set n 0 0 2\n99", "STORED"),
        ("incr n 1", "100"),
        ("decr n 95", "5"),
        ("get n", "VALUE n 0 3\n5  \nEND"),
        ("decr n 6", "0"),
        ("incr n 18446744073709551615", "18446744073709551615"),
        ("incr n 2", "1"),
        ("incr n -1", "CLIENT_ERROR invalid numeric delta argument"),
        ("set n 0 0 1\nx", "STORED"),
        (
            "incr n 1",
            "CLIENT_ERROR cannot increment or decrement non-numeric value",
        ),
        ("incr n 1 noreply", ""),
        ("incr n", "ERROR"),
    ]);
}

#[test]
fn touch_and_gat_change_the_expiry() {
    dialogue(&[
        ("touch a 1", "NOT_FOUND"),
        ("set a 0 0 1\nx", "STORED"),
        ("touch a 100", "TOUCHED"),
        ("mg a t", "HD t100"),
        ("gat 200 a b", "VALUE a 0 1\nx\nEND"),
        ("mg a t", "HD t200"),
        ("gats 0 a", "VALUE a 0 1 1\nx\nEND"),
        ("gat 0", "END"),
        ("gat x a", "CLIENT_ERROR invalid exptime argument"),
        ("touch a x", "CLIENT_ERROR invalid exptime argument"),
        ("touch a -1 noreply", ""),
        ("get a", "END"),
    ]);
}

#[test]
fn meta_commands_answer_their_flags_in_order() {
    dialogue(&[
        ("mn", "MN"),
        ("mg a", "EN"),
        ("mg a q", ""),
        ("mg a k O7 v", "EN ka O7"),
        ("ms a 3 T90 F5 c k O8\none", "HD c1 ka O8"),
        ("mg a h", "HD h0"),
        ("mg a t h f s c k O9 v", "VA 3 t90 h1 f5 s3 c1 ka O9\none"),
        ("mg a T0 t", "HD t-1"),
        ("ms a 1 ME\nx", "NS"),
        ("ms a 1 MA q\n!", ""),
        ("ms a 1 C1\nx", "EX"),
        ("ms b 1 C1\nx", "NF"),
        ("mg a v", "VA 4\none!"),
        ("ms AQID 1 b k\nx", "HD kAQID b"),
        ("mg AQID k b", "HD kAQID b"),
        ("md AQID b k q", ""),
        ("md AQID b k", "NF kAQID b"),
        ("md a C1", "EX"),
        ("md a", "HD"),
        ("me a", "EN"),
    ]);
}

#[test]
fn one_client_wins_the_right_to_store_anew() {
    dialogue(&[
        ("mg a N30 t v", "VA 0 t30 W\n"),
        ("mg a N30 t", "HD t30 Z"),
        ("ms a 1 T90 c\nx", "HD c2"),
        ("mg a R30", "HD"),
        ("mg a R100", "HD W"),
        ("mg a R100", "HD Z"),
        ("md a I T40", "HD"),
        ("mg a t c", "HD t40 c3 X W"),
        ("mg a c", "HD c3 Z X"),
        ("ms a 1 C2 I\ny", "HD"),
        ("mg a v t", "VA 1 t40 Z X\ny"),
        ("ms a 1 C4 I\nz", "HD"),
        ("mg a v t", "VA 1 t-1\nz"),
    ]);
}

#[test]
fn meta_arithmetic_changes_and_creates_numbers() {
    dialogue(&[
        ("ma n", "NF"),
        ("ma n N30 J9 v t", "VA 1 t30\n9"),
        ("ma n N30 v t", "VA 2 t30\n10"),
        ("ma n T60 MD D20 v c t", "VA 1 c3 t60\n0"),
        ("ma n C1", "EX"),
        ("ma n q", ""),
        ("ma n Mx", "CLIENT_ERROR invalid mode for ma M token"),
        ("ma n Dx", "CLIENT_ERROR invalid or duplicate flag"),
        ("ms n 1\nx", "HD"),
        (
            "ma n",
            "CLIENT_ERROR cannot increment or decrement non-numeric value",
        ),
    ]);
}

#[test]
fn invalid_meta_commands_get_the_reason() {
    let [long, longest] = ["O".repeat(33), "O".repeat(32)];
    dialogue(&[
        ("mg", "ERROR"),
        ("mx a", "ERROR"),
        ("me", "CLIENT_ERROR bad command line format"),
        ("ms a", "CLIENT_ERROR bad command line format"),
        ("ms a x", "CLIENT_ERROR bad command line format"),
        ("mg a c c", "CLIENT_ERROR duplicate flag"),
        ("mg a !", "CLIENT_ERROR invalid flag"),
        ("mg a T", "CLIENT_ERROR bad token in command line format"),
        ("mg a! b", "CLIENT_ERROR error decoding key"),
        ("md a c c", "CLIENT_ERROR invalid or duplicate flag"),
        ("ms a 2 q !\nxx", "CLIENT_ERROR invalid flag"),
        ("ms a 2 Mx\nxx", "CLIENT_ERROR invalid mode for ms M token"),
        ("ms a 1 q\nxx", "CLIENT_ERROR bad data chunk\nERROR"),
        (&format!("mg a {longest}"), &format!("EN {longest}")),
        (
            &format!("mg a q {long}"),
            "CLIENT_ERROR opaque token too long",
        ),
        (
            &format!("mg a{}", " c".repeat(18)),
            "CLIENT_ERROR options flags are too long",
        ),
    ]);
}

#[test]
fn forbidden_commands_are_refused() {
    let store = testing::shared(Limits::DEFAULT);
    let rules = Rules {
        flush_all: false,
        ..Rules::default()
    };
    let mut conversation = Conversation::new(&Arc::new(ServerState::new(rules)), Ends::default());
    let lines = b"flush_all\r\nflush_all noreply\r\nshutdown\r\n";
    conversation.room()[..lines.len()].copy_from_slice(lines);
    conversation.received(lines.len());
    let mut replies = Vec::new();
    assert_eq!(conversation.run(&store, &mut replies), Ok(Next::Read));
    let expected = "CLIENT_ERROR flush_all not allowed\r\nERROR: shutdown not enabled\r\n";
    assert_eq!(String::from_utf8_lossy(&replies), expected);
}

#[test]
fn a_turn_has_at_most_one_dump_and_dumps_may_be_forbidden() {
    let store = testing::shared(Limits::DEFAULT);
    let dump = "lru_crawler metadump all\r\n";
    let mut conversation = Conversation::default();
    let lines = dump.repeat(3);
    conversation.room()[..lines.len()].copy_from_slice(lines.as_bytes());
    conversation.received(lines.len());
    for expected in [Next::Continue, Next::Continue, Next::Continue, Next::Read] {
        let mut replies = Vec::new();
        assert_eq!(conversation.run(&store, &mut replies), Ok(expected));
        assert_eq!(replies.is_empty(), expected == Next::Read);
    }
    let rules = Rules {
        dump: false,
        ..Rules::default()
    };
    let mut conversation = Conversation::new(&Arc::new(ServerState::new(rules)), Ends::default());
    conversation.room()[..dump.len()].copy_from_slice(dump.as_bytes());
    conversation.received(dump.len());
    let mut replies = Vec::new();
    conversation.run(&store, &mut replies).unwrap();
    assert_eq!(replies, b"ERROR metadump not allowed\r\n");
}

#[test]
fn commands_per_turn_can_be_limited() {
    let store = testing::shared(Limits::DEFAULT);
    let rules = Rules {
        per_turn: Some(2),
        ..Rules::default()
    };
    let mut conversation = Conversation::new(&Arc::new(ServerState::new(rules)), Ends::default());
    let lines = b"mn\r\nmn\r\nset a 0 0 1\r\nx\r\nget a\r\nmn\r\n";
    conversation.room()[..lines.len()].copy_from_slice(lines);
    conversation.received(lines.len());
    for (next, expected) in [
        (Next::Continue, "MN\r\nMN\r\n"),
        (Next::Continue, "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n"),
        (Next::Read, "MN\r\n"),
    ] {
        let mut replies = Vec::new();
        assert_eq!(conversation.run(&store, &mut replies), Ok(next));
        assert_eq!(String::from_utf8_lossy(&replies), expected);
    }
}

#[test]
fn without_cas_compare_and_set_never_matches() {
    let store = testing::shared(Limits::DEFAULT);
    store.with(|store| store.set_has_cas(false));
    let mut conversation = Conversation::default();
    for (line, expected) in [
        ("set a 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("gets a\r\n", "VALUE a 0 1 0\r\nx\r\nEND\r\n"),
        ("cas a 0 0 1 0\r\ny\r\n", "EXISTS\r\n"),
        ("ms a 1 C0 c\r\ny\r\n", "EX c0\r\n"),
        ("md a C9\r\n", "EX\r\n"),
        ("md a C0\r\n", "HD\r\n"),
    ] {
        conversation.room()[..line.len()].copy_from_slice(line.as_bytes());
        conversation.received(line.len());
        let mut replies = Vec::new();
        conversation.run(&store, &mut replies).unwrap();
        assert_eq!(String::from_utf8_lossy(&replies), expected);
    }
}

#[test]
fn commands_are_counted_over_all_connections() {
    let store = testing::shared(Limits::DEFAULT);
    let server = Arc::new(ServerState::default());
    let say = |lines: &str| {
        let mut conversation = Conversation::new(&server, Ends::default());
        conversation.room()[..lines.len()].copy_from_slice(lines.as_bytes());
        conversation.received(lines.len());
        let mut replies = Vec::new();
        conversation.run(&store, &mut replies).unwrap();
        String::from_utf8(replies).unwrap()
    };
    say("set a 0 0 1\r\nx\r\nget a b\r\nincr a 1\r\ndelete b\r\ntouch a 0\r\n");
    say("get a\r\ncas a 0 0 1 7\r\nx\r\n");
    let stats = say("stats\r\n");
    for told in [
        "cmd_get 3",
        "get_hits 2",
        "get_misses 1",
        "cmd_set 2",
        "cas_badval 1",
        "delete_misses 1",
        "cmd_touch 1",
        "touch_hits 1",
        "curr_items 1",
        "total_items 1",
        "curr_connections 1",
        "total_connections 3",
    ] {
        assert!(
            stats.contains(&format!("STAT {told}\r\n")),
            "{told} in {stats}"
        );
    }
    assert!(stats.ends_with("END\r\n"));
    store.with(|store| store.count_one_sided(10, 6));
    let stats = say("stats\r\n");
    for told in [
        "cmd_get 13",
        "get_hits 8",
        "get_misses 5",
        "one_sided_gets 10",
        "one_sided_hits 6",
    ] {
        assert!(
            stats.contains(&format!("STAT {told}\r\n")),
            "{told} in {stats}"
        );
    }
    assert_eq!(say("stats reset\r\n"), "RESET\r\n");
    let stats = say("stats\r\n");
    for told in [
        "one_sided_gets 0",
        "cmd_get 0",
        "curr_items 1",
        "total_items 0",
        "total_connections 1",
    ] {
        assert!(
            stats.contains(&format!("STAT {told}\r\n")),
            "{told} in {stats}"
        );
    }
}

#[test]
fn prefixes_are_counted_when_asked_for() {
    dialogue(&[
        ("get x:y", "END"),
        ("stats detail on", "OK"),
        ("set a:b 0 0 1\nx", "STORED"),
        ("get a:b a:c d", "VALUE a:b 0 1\nx\nEND"),
        ("delete a:b", "DELETED"),
        ("stats detail dump", "PREFIX a get 2 hit 1 set 1 del 1\nEND"),
        (
            "stats detail",
            "CLIENT_ERROR usage: stats detail on|off|dump",
        ),
    ]);
}
