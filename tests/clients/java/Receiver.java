import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** A push consumer that starts at the first offset and prints every message. */
final class Receiver implements Session {
    private final String as;
    private final String topic;
    private final DefaultMQPushConsumer consumer;

    Receiver(Command command) throws Exception {
        as = command.text("as");
        topic = command.text("topic");
        consumer = new DefaultMQPushConsumer(command.text("group"));
        consumer.setNamesrvAddr(command.text("namesrv"));
        consumer.setInstanceName(as);
        consumer.setHeartbeatBrokerInterval(3000);
        consumer.setPollNameServerInterval(3000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.subscribe(topic, command.text("tags", "*"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> Output.received(as, message));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    /** {@code queues}: prints the queues of the topic that this consumer owns at the moment. */
    @Override
    public void run(Command command) {
        String queues = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl()
            .getProcessQueueTable().keySet().stream()
            .filter(queue -> queue.getTopic().equals(topic))
            .map(queue -> queue.getBrokerName() + ":" + queue.getQueueId()).sorted()
            .collect(Collectors.joining(","));
        Output.line(as, "queues", "queues", queues);
    }

    @Override
    public void stop() {
        consumer.shutdown();
    }
}
