//! The way of a send allocates nothing once its buffers have grown: counted, not believed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ringmq::wire::frame::LENGTH_BYTES;
use ringmq::wire::headers::{SendRequest, SendResponse};
use ringmq::wire::message_id::encode_offset_id;
use ringmq::wire::record::{Check, Checked, PropertiesSpec, RecordSpec, Untrusted, patch};
use ringmq::wire::{
    Encoding, Frame, RequestCode, RequestHead, ResponseCode, ResponseHead, Scratch,
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the place came from `alloc` above, that is from the system's allocator.
        unsafe { System.dealloc(place, layout) }
    }
}

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

fn send_request(encoding: Encoding) -> Vec<u8> {
    let body = [7; 1024];
    let request = SendRequest {
        producer_group: "group",
        topic: "topic",
        default_topic: "TBW102",
        default_topic_queue_nums: 4,
        queue_id: 3,
        sys_flag: 0,
        born_timestamp: 1_795_986_780_882,
        flag: 0,
        properties: "KEYS\u{1}k\u{2}UNIQ_KEY\u{1}7F000001000118B4AAC2100F43850001\u{2}",
        reconsume_times: 0,
        unit_mode: false,
        max_reconsume_times: None,
        batch: false,
        broker_name: Some("broker-a"),
    };
    let mut frame = Vec::new();
    let head = RequestHead::new(RequestCode::SEND_MESSAGE_V2, 7);
    ringmq::wire::encode_request(&mut frame, encoding, &head, None, body.len(), |ext| {
        request.encode(ext);
    });
    frame.extend_from_slice(&body);
    frame
}

/// A send as a shard carries it out: frame, fields, record, its check, the answer.
fn one_send(frame: &[u8], scratch: &mut Scratch, record: &mut [u8], answer: &mut Vec<u8>) {
    let frame = Frame::decode(&frame[LENGTH_BYTES..], scratch).unwrap();
    let fields = SendRequest::decode(&frame.header).unwrap();
    assert_eq!((fields.topic, fields.queue_id), ("topic", 3));
    let store_host = "127.0.0.1:10911".parse().unwrap();
    let spec = RecordSpec {
        topic: fields.topic,
        queue_id: fields.queue_id,
        flag: fields.flag,
        sys_flag: fields.sys_flag,
        born_timestamp: fields.born_timestamp,
        born_host: store_host,
        store_host,
        reconsume_times: fields.reconsume_times,
        prepared_transaction_offset: 0,
        body: frame.body,
        properties: PropertiesSpec {
            texts: &[fields.properties.as_bytes()],
            pairs: &[("CLUSTER", b"DefaultCluster"), ("TRACE_ON", b"true")],
        },
    };
    let record = &mut record[..spec.encoded_len().unwrap()];
    spec.encode(record);
    patch(record, 5, 1000, 1_700_000_000_001);
    let check = Check {
        position: Some(1000),
        body_crc: true,
        no_nul: true,
    };
    let Checked::Message(stored) = Untrusted(record).check(check) else {
        panic!("our own record is bad");
    };
    assert_eq!(stored.properties().text("KEYS"), Some("k"));
    assert!(stored.needs_dispatch());
    let id = encode_offset_id(stored.store_host(), stored.log_offset());
    let response = SendResponse {
        msg_id: id.as_str(),
        queue_id: stored.queue_id(),
        queue_offset: 5,
        transaction_id: stored.properties().text("UNIQ_KEY"),
        batch_uniq_id: None,
        recall_handle: None,
        msg_region: Some("DefaultRegion"),
        trace_on: Some(true),
    };
    answer.clear();
    let head = ResponseHead {
        code: ResponseCode::SUCCESS,
        opaque: frame.header.opaque,
    };
    ringmq::wire::encode_response(answer, frame.header.encoding, &head, None, 0, |ext| {
        response.encode(ext);
    });
}

#[test]
fn a_send_allocates_nothing_once_its_buffers_have_grown() {
    for encoding in [Encoding::Json, Encoding::Binary] {
        let frame = send_request(encoding);
        let (mut scratch, mut answer) = (Scratch::new(), Vec::new());
        let mut record = vec![0; 4096];
        one_send(&frame, &mut scratch, &mut record, &mut answer);
        let before = allocations();
        for _ in 0..1000 {
            one_send(&frame, &mut scratch, &mut record, &mut answer);
        }
        assert_eq!(allocations() - before, 0, "{encoding:?}");
    }
    // The counter counts.
    let before = allocations();
    drop(std::hint::black_box(vec![1_u8]));
    assert_eq!(allocations() - before, 1);
}
