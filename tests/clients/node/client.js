// ali-ons under remote control: one command per line of standard input, events as JSON lines on
// standard output. Commands run side by side; each ends with a line
// {"as":NAME,"event":"done","verb":VERB,"error":null or text}.
//
//   producer as= namesrv= group=                 then send, stop
//   consumer as= namesrv= group= topic= [tags=]  then stop
'use strict';

const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

// Standard output belongs to the events.
const logger = {
  debug() {},
  info() {},
  warn: (...words) => console.error(...words),
  error: (...words) => console.error(...words),
};

function write(as, event, values) {
  process.stdout.write(JSON.stringify({ as, event, ...values }) + '\n');
}

/** One line of input: `verb as=NAME key=value ...`. Values hold no blanks. */
function parse(line) {
  const [verb, ...pairs] = line.trim().split(/\s+/);
  const values = Object.fromEntries(pairs.map(pair => {
    const equals = pair.indexOf('=');
    if (equals < 1) throw new Error(`not key=value: ${pair}`);
    return [pair.slice(0, equals), pair.slice(equals + 1)];
  }));
  return { verb, ...values };
}

function options(command) {
  return {
    nameSrv: command.namesrv,
    instanceName: command.as,
    clientIP: '127.0.0.1',
    httpclient: {}, // asked for at start, used only to find name servers over HTTP
    logger,
    rebalanceInterval: 2000,
    sendMsgTimeout: 10000, // a cold start on a busy machine takes its time
  };
}

/**
 * A producer. Message number n of the sender NAME has the body and the key `NAME-n`, the user
 * property `number=n`, and the tag that stands at n in `tags=A,B,...`.
 */
class Sender {
  constructor(command) {
    this.as = command.as;
    this.producer = new Producer({ ...options(command), producerGroup: command.group });
    this.producer.on('error', error => logger.error(error));
    this.next = 0;
  }

  ready() {
    return this.producer.ready();
  }

  /** `send topic= count= [tags=]`; the client knows only one way to send. */
  async send(command) {
    for (let i = 0; i < Number(command.count || 1); i++) {
      const number = this.next++;
      const name = `${this.as}-${number}`;
      const tags = (command.tags || 'T').split(',');
      const message = new Message(command.topic, tags[number % tags.length], name);
      message.keys = [ name ];
      message.properties.number = String(number);
      const sent = { topic: command.topic, body: name, keys: message.keys, tags: message.tags };
      try {
        const result = await this.producer.send(message);
        write(this.as, 'sent', {
          ...sent,
          status: result.sendStatus,
          offsetMsgId: result.msgId,
          queueId: Number(result.messageQueue.queueId),
          queueOffset: result.queueOffset,
        });
      } catch (error) {
        write(this.as, 'failed', { body: name, error: String(error) });
      }
    }
  }

  stop() {
    return this.producer.close();
  }
}

/** A push consumer that starts at the first offset and prints every message. */
class Receiver {
  constructor(command) {
    this.consumer = new Consumer({
      ...options(command),
      consumerGroup: command.group,
      consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    });
    this.consumer.on('error', error => logger.error(error));
    this.consumer.subscribe(command.topic, command.tags || '*', async message => {
      write(command.as, 'received', {
        // This client takes the place in the log for the id; the others show the producer's unique
        // key.
        msgId: message.properties.UNIQ_KEY || message.msgId,
        offsetMsgId: message.msgId,
        topic: message.topic,
        queueId: message.queueId,
        queueOffset: message.queueOffset,
        body: message.body.toString(),
        keys: message.keys,
        tags: message.tags,
        number: message.properties.number,
        reconsumeTimes: message.reconsumeTimes,
      });
    });
  }

  ready() {
    return this.consumer.ready();
  }

  stop() {
    return this.consumer.close();
  }
}

const sessions = new Map();

async function carryOut(command) {
  const { as, verb } = command;
  if (verb === 'producer' || verb === 'consumer') {
    const session = verb === 'producer' ? new Sender(command) : new Receiver(command);
    sessions.set(as, session);
    return session.ready();
  }
  const session = sessions.get(as);
  if (!session) throw new Error(`no client named ${as}`);
  if (typeof session[verb] !== 'function') throw new Error(`no such verb: ${verb}`);
  if (verb === 'stop') sessions.delete(as);
  return session[verb](command);
}

async function run(line) {
  let command = {};
  let error = null;
  try {
    command = parse(line);
    await carryOut(command);
  } catch (thrown) {
    logger.error(thrown);
    error = String(thrown);
  }
  write(command.as, 'done', { verb: command.verb, error });
}

readline
  .createInterface({ input: process.stdin })
  .on('line', run)
  .on('close', () => process.exit(0));
