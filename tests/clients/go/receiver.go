package main

import (
	"context"
	"fmt"
	"strings"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// receiver is a push consumer that starts at the first offset and prints every message.
type receiver struct {
	consumer rocketmq.PushConsumer
}

func newReceiver(as string, c command) (*receiver, error) {
	r, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{c.text("namesrv", "")})),
		consumer.WithGroupName(c.text("group", "")),
		consumer.WithInstance(as),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return nil, err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: c.text("tags", "*")}
	err = r.Subscribe(c.text("topic", ""), selector,
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				received(as, message)
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		return nil, err
	}
	return &receiver{consumer: r}, r.Start()
}

func (r *receiver) run(c command) error {
	return fmt.Errorf("no such verb: %s", c.verb)
}

func (r *receiver) stop() error {
	return r.consumer.Shutdown()
}

func received(as string, message *primitive.MessageExt) {
	write(as, "received", event{"msgId": message.MsgId, "offsetMsgId": message.OffsetMsgId,
		"topic": message.Topic, "queueId": message.Queue.QueueId,
		"queueOffset": message.QueueOffset, "body": string(message.Body),
		"keys": strings.TrimSpace(message.GetKeys()), "tags": message.GetTags(),
		"number": message.GetProperty("number"), "reconsumeTimes": message.ReconsumeTimes})
}
