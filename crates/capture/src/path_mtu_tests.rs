use super::*;
use crate::test_support::may_run;

#[test]
fn it_is_found_unless_somebody_chose_otherwise() {
    if !may_run("it_is_found_unless_somebody_chose_otherwise") {
        return;
    }
    let pod = NetworkNamespace::create().unwrap();
    let [(repeats, _), (floor, _)] = WITH_PROBING;
    let settings = || [PROBING, repeats, floor].map(|name| links::get_sysctl(&pod, name).unwrap());
    assert_eq!(settings(), ["0", "3", "48"], "this is what the kernel does by itself");
    find(&pod);
    assert_eq!(settings(), ["1", "2", "1024"]);

    let chosen = ["2", "5", "100"];
    for (name, value) in [PROBING, repeats, floor].into_iter().zip(chosen) {
        links::set_sysctl(&pod, name, value).unwrap();
    }
    find(&pod);
    assert_eq!(settings(), chosen);
}
