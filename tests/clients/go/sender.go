package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// sender is a producer. Message number n of the sender NAME has the body and the key "NAME-n", the
// user property number=n, and the tag that stands at n in tags=A,B,...
type sender struct {
	as       string
	producer rocketmq.Producer
	next     int
}

func newSender(as string, c command) (*sender, error) {
	p, err := rocketmq.NewProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{c.text("namesrv", "")})),
		producer.WithGroupName(c.text("group", "")),
		producer.WithInstanceName(as),
		// A cold start on a busy machine takes its time.
		producer.WithSendMsgTimeout(10*time.Second),
	)
	if err != nil {
		return nil, err
	}
	return &sender{as: as, producer: p}, p.Start()
}

// run sends: send topic= mode=sync|async|oneway|batch count= [tags=].
func (s *sender) run(c command) error {
	messages := make([]*primitive.Message, c.number("count", 1))
	for i := range messages {
		messages[i] = s.message(c)
	}
	switch c.text("mode", "") {
	case "sync":
		return s.each(messages, s.sync)
	case "async":
		return s.async(messages)
	case "oneway":
		return s.each(messages, s.oneway)
	case "batch":
		return s.batch(messages)
	}
	return fmt.Errorf("no such verb or mode")
}

func (s *sender) stop() error {
	return s.producer.Shutdown()
}

func (s *sender) each(messages []*primitive.Message, send func(*primitive.Message) error) error {
	for _, message := range messages {
		if err := send(message); err != nil {
			s.failed(message, err)
		}
	}
	return nil
}

func (s *sender) sync(message *primitive.Message) error {
	result, err := s.producer.SendSync(context.Background(), message)
	if err == nil {
		s.sent([]*primitive.Message{message}, result)
	}
	return err
}

func (s *sender) oneway(message *primitive.Message) error {
	err := s.producer.SendOneWay(context.Background(), message)
	if err == nil {
		write(s.as, "sent", event{"status": "ONEWAY", "topic": message.Topic,
			"body": string(message.Body), "keys": message.GetKeys(), "tags": message.GetTags()})
	}
	return err
}

func (s *sender) async(messages []*primitive.Message) error {
	var open sync.WaitGroup
	for _, message := range messages {
		message := message
		open.Add(1)
		err := s.producer.SendAsync(context.Background(),
			func(_ context.Context, result *primitive.SendResult, err error) {
				defer open.Done()
				if err != nil {
					s.failed(message, err)
					return
				}
				s.sent([]*primitive.Message{message}, result)
			}, message)
		if err != nil {
			return err
		}
	}
	open.Wait()
	return nil
}

func (s *sender) batch(messages []*primitive.Message) error {
	result, err := s.producer.SendSync(context.Background(), messages...)
	if err == nil {
		s.sent(messages, result)
	}
	return err
}

func (s *sender) message(c command) *primitive.Message {
	number := s.next
	s.next++
	name := fmt.Sprintf("%s-%d", s.as, number)
	tags := strings.Split(c.text("tags", "T"), ",")
	message := primitive.NewMessage(c.text("topic", ""), []byte(name))
	message.WithTag(tags[number%len(tags)])
	message.WithKeys([]string{name})
	message.WithProperty("number", strconv.Itoa(number))
	return message
}

// sent prints what became of messages that went out together: their ids stand separated by commas.
// The client gives a batch no msgId.
func (s *sender) sent(messages []*primitive.Message, result *primitive.SendResult) {
	offsetMsgIds := strings.Split(result.OffsetMsgID, ",")
	for i, message := range messages {
		status := "SEND_OK"
		if result.Status != primitive.SendOK {
			status = strconv.Itoa(int(result.Status))
		}
		var msgId interface{}
		if len(messages) == 1 {
			msgId = result.MsgID
		}
		write(s.as, "sent", event{"status": status, "msgId": msgId, "offsetMsgId": offsetMsgIds[i],
			"topic": message.Topic, "queueId": result.MessageQueue.QueueId,
			"queueOffset": result.QueueOffset + int64(i), "body": string(message.Body),
			"keys": strings.TrimSpace(message.GetKeys()), "tags": message.GetTags()})
	}
}

func (s *sender) failed(message *primitive.Message, err error) {
	write(s.as, "failed", event{"body": string(message.Body), "error": err.Error()})
}
