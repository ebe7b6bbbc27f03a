use std::future::{pending, ready};

use super::*;

fn endpoint(number: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], number))
}

async fn silence(of: SocketAddr, lasts: Duration) -> Result<(), Failure> {
    tokio::time::sleep(lasts).await;
    Err(Failure::ConnectTimeout { address: of, waited: lasts })
}

const LONG: Duration = Duration::from_secs(3);

#[tokio::test(start_paused = true)]
async fn who_does_not_answer_is_avoided_longer_each_time_and_tried_once_in_between() {
    let silent = Silent::default();
    let address = endpoint(1);
    assert!(!silent.is_avoided(address));
    silent.dial(address, true, silence(address, LONG)).await.unwrap_err();
    for pause in [5, 10, 20, 40, 60, 60] {
        assert!(silent.is_avoided(address));
        tokio::time::sleep(Duration::from_secs(pause) - Duration::from_millis(1)).await;
        assert!(silent.is_avoided(address), "less than {pause} s");
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(!silent.is_avoided(address), "more than {pause} s");
        let begun = Instant::now();
        let mut probe = Box::pin(silent.dial(address, true, silence(address, LONG)));
        assert!(timeout(Duration::from_millis(1), &mut probe).await.is_err());
        assert!(silent.is_avoided(address), "one at a time");
        probe.await.unwrap_err();
        assert!(begun.elapsed() <= PROBE + Duration::from_millis(2), "{:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn who_answers_is_not_avoided_any_more() {
    let silent = Silent::default();
    let address = endpoint(1);
    silent.dial(address, false, silence(address, LONG)).await.unwrap_err();
    silent.dial(address, false, ready(Ok(()))).await.unwrap();
    assert!(!silent.is_avoided(address) && silent.known.lock().is_empty());
    // A refusal is an answer.
    silent.did_not_answer(address);
    let refused =
        Failure::Connect { address, source: std::sync::Arc::new(std::io::ErrorKind::ConnectionRefused.into()) };
    silent.dial(address, false, ready(Err::<(), _>(refused))).await.unwrap_err();
    assert!(!silent.is_avoided(address));
    // It begins anew.
    silent.dial(address, false, silence(address, LONG)).await.unwrap_err();
    assert_eq!(silent.known.lock()[0].times, 1);
}

#[tokio::test(start_paused = true)]
async fn the_only_one_there_is_is_waited_for() {
    let silent = Silent::default();
    let address = endpoint(1);
    silent.did_not_answer(address);
    let slow = async {
        tokio::time::sleep(LONG).await;
        Ok(())
    };
    silent.dial(address, false, slow).await.unwrap();
    assert!(!silent.is_avoided(address));
}

#[tokio::test(start_paused = true)]
async fn many_that_fail_together_are_one_failure() {
    let silent = Silent::default();
    let address = endpoint(1);
    let together = (0..100).map(|_| silent.dial(address, true, silence(address, LONG)));
    futures_util::future::join_all(together).await;
    assert_eq!(silent.known.lock()[0].times, 1);
}

#[tokio::test(start_paused = true)]
async fn a_program_that_does_not_wait_so_long_is_no_answer() {
    let silent = Silent::default();
    let address = endpoint(1);
    for (patience, avoided) in [(Duration::from_millis(500), false), (Duration::from_secs(2), true)] {
        let given_up = timeout(patience, silent.dial(address, true, pending::<Result<(), Failure>>()));
        assert!(given_up.await.is_err());
        assert_eq!(silent.is_avoided(address), avoided, "{patience:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_are_remembered_than_there_is_room_for() {
    let silent = Silent::default();
    for number in 0..1000 {
        silent.did_not_answer(endpoint(number));
    }
    assert_eq!(silent.known.lock().len(), REMEMBERED);
    assert!(silent.is_avoided(endpoint(999)));
}
