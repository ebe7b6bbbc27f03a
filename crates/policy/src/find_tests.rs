use super::*;
use crate::test_support::{endpoint, mesh, pod, service};

#[test]
fn names_people_type() {
    let web = service("web", &["10.96.0.1"]);
    let db = service("db", &[]);
    let client = pod("client", "10.0.0.1");
    let db_1 = endpoint("db-1", "10.0.1.1", &[&db]);
    let mesh = mesh(&[&web, &db], &[&client, &db_1]);
    let at = |address| Destination::from(crate::test_support::at(address));
    let to = |text| find_destinations(&mesh, &client, text);
    assert_eq!(to("default/web:80"), Ok(vec![at("10.96.0.1:80")]));
    assert_eq!(to("default/web.default.svc.cluster.local:80"), Ok(vec![at("10.96.0.1:80")]));
    assert_eq!(to("default/db:5432"), Ok(vec![at("10.0.1.1:5432")]));
    assert_eq!(to("default/db-1:1"), Ok(vec![at("10.0.1.1:1")]));
    let nothing = service("nothing", &[]);
    let unaddressed = Destination::Unaddressed { service: nothing.id.clone(), port: 5432 };
    let with_nothing = crate::test_support::mesh(&[&nothing], &[]);
    assert_eq!(find_destinations(&with_nothing, &client, "default/nothing:5432"), Ok(vec![unaddressed]));
    assert_eq!(to("1.2.3.4:5"), Ok(vec![at("1.2.3.4:5")]));
    assert!(matches!(to("default/web"), Err(LookupError::Port(_))));
    assert!(matches!(to("default/web:0"), Err(LookupError::Port(_))));
    assert!(matches!(to("web:80"), Err(LookupError::Form(_))));
    assert_eq!(
        to("default/wbe:80").expect_err("unknown").to_string(),
        "no pod or service default/wbe is known; its namespace has client, db, db-1, web"
    );
    let names = |text| find_workloads(&mesh, text).map(|list| list.iter().map(|w| w.name.to_string()).collect());
    assert_eq!(names("default/client"), Ok(vec!["client".to_owned()]));
    assert_eq!(names("default/db"), Ok(vec!["db-1".to_owned()]));
    assert_eq!(names("default/web"), Err(LookupError::Empty("default/web".to_owned())));
    assert!(matches!(names("other/x"), Err(LookupError::Unknown { .. })));
}
