package main

import (
	"context"
	"fmt"
	"os"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func main() {
	namesrv := primitive.NamesrvAddr{"127.0.0.1:9876"}
	if len(os.Args) > 1 {
		namesrv = os.Args[1:]
	}

	p, err := rocketmq.NewProducer(
		producer.WithNameServer(namesrv),
		producer.WithGroupName("quick-producers"),
	)
	check(err)
	check(p.Start())
	message := primitive.NewMessage("QuickGo", []byte("hello from Go"))
	result, err := p.SendSync(context.Background(), message)
	check(err)
	fmt.Println("sent:", result.Status == primitive.SendOK)

	arrived := make(chan string, 1)
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(namesrv),
		consumer.WithGroupName("quick-go-consumers"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	check(err)
	check(c.Subscribe("QuickGo", consumer.MessageSelector{},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			arrived <- string(messages[0].Body)
			return consumer.ConsumeSuccess, nil
		}))
	check(c.Start())

	fmt.Println("received:", <-arrived)
	check(c.Shutdown())
	check(p.Shutdown())
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
