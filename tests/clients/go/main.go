// The Go client of RocketMQ under remote control: one command per line of standard input, events as
// JSON lines on standard output. Commands run side by side; each ends with a line
// {"as":NAME,"event":"done","verb":VERB,"error":null or text}.
//
//	producer as= namesrv= group=                 then send, stop
//	consumer as= namesrv= group= topic= [tags=]  then stop
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// session is a client that lives under one name until stop.
type session interface {
	run(c command) error
	stop() error
}

// command is one line of input: "verb as=NAME key=value ...". Values hold no blanks.
type command struct {
	verb   string
	values map[string]string
}

func parse(line string) (command, error) {
	parts := strings.Fields(line)
	if len(parts) == 0 {
		return command{}, fmt.Errorf("an empty line")
	}
	c := command{verb: parts[0], values: map[string]string{}}
	for _, part := range parts[1:] {
		key, value, found := strings.Cut(part, "=")
		if !found {
			return c, fmt.Errorf("not key=value: %s", part)
		}
		c.values[key] = value
	}
	return c, nil
}

func (c command) text(key, otherwise string) string {
	if value, found := c.values[key]; found {
		return value
	}
	return otherwise
}

func (c command) number(key string, otherwise int) int {
	number, err := strconv.Atoi(c.values[key])
	if err != nil {
		return otherwise
	}
	return number
}

// event is one line of output.
type event map[string]interface{}

var output sync.Mutex

func write(as, name string, e event) {
	e["as"] = as
	e["event"] = name
	line, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
}

var sessions sync.Map

func main() {
	rlog.SetLogLevel("warn")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		go run(lines.Text())
	}
}

func run(line string) {
	c, err := parse(line)
	as := c.text("as", "")
	if err == nil {
		err = carryOut(as, c)
	}
	e := event{"verb": c.verb, "error": nil}
	if err != nil {
		e["error"] = err.Error()
	}
	write(as, "done", e)
}

func carryOut(as string, c command) error {
	switch c.verb {
	case "producer":
		s, err := newSender(as, c)
		if err == nil {
			sessions.Store(as, s)
		}
		return err
	case "consumer":
		r, err := newReceiver(as, c)
		if err == nil {
			sessions.Store(as, r)
		}
		return err
	}
	found, ok := sessions.Load(as)
	if !ok {
		return fmt.Errorf("no client named %s", as)
	}
	if c.verb == "stop" {
		sessions.Delete(as)
		return found.(session).stop()
	}
	return found.(session).run(c)
}
