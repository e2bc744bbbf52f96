#include "fixture.hpp"

namespace penstock::test::cuda_semantics {
namespace {

class CudaEvents : public CudaSemantics {};

TEST_F(CudaEvents, HoldTheStreamsThatWaitForThem) {
  Pages result(1);
  result.register_pages(0, 1);
  const cudaStream_t stream = make_stream(), waiting = make_stream();
  const cudaEvent_t event = make_event(), after = make_event();
  unsigned* const device = allocate();
  Hold hold(stream);
  write(device, 3, stream);
  recorded(event, stream);

  ASSERT_EQ(cudaStreamWaitEvent(waiting, event, 0), cudaSuccess);
  copy_out(result.words(), device, waiting);
  recorded(after, waiting);

  EXPECT_TRUE(stays_pending(after));
  hold.release();
  EXPECT_EQ(cudaEventSynchronize(after), cudaSuccess);
  EXPECT_EQ(*result.words(), 3u);
}

TEST_F(CudaEvents, AreWaitedForAsLastRecordedAtTheTimeOfTheCall) {
  Pages result(1);
  result.register_pages(0, 1);
  const cudaStream_t stream = make_stream(), waiting = make_stream();
  const cudaEvent_t event = make_event();
  unsigned* const device = allocate();
  write(device, 1, stream);
  recorded(event, stream);
  ASSERT_EQ(cudaStreamWaitEvent(waiting, event, 0), cudaSuccess);
  copy_out(result.words(), device, waiting);
  const Hold hold(stream);

  write(device, 2, stream);
  recorded(event, stream);

  EXPECT_EQ(cudaStreamSynchronize(waiting), cudaSuccess);
  EXPECT_EQ(*result.words(), 1u);
  EXPECT_TRUE(hold.holds());
}

TEST_F(CudaEvents, RecordedByAnotherStreamLeaveEarlierWaitsAsTheyAre) {
  const cudaStream_t first = make_stream(), second = make_stream(), waiting = make_stream();
  const cudaEvent_t event = make_event(), after = make_event();
  Hold hold(first);
  recorded(event, first);
  ASSERT_EQ(cudaStreamWaitEvent(waiting, event, 0), cudaSuccess);
  recorded(after, waiting);

  recorded(event, second);

  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess) << "its last record is the other stream's";
  EXPECT_TRUE(hold.holds());
  EXPECT_TRUE(stays_pending(after)) << "the wait is for the first record";
  hold.release();
  EXPECT_EQ(cudaEventSynchronize(after), cudaSuccess);
}

TEST_F(CudaEvents, NeverRecordedAreNoWait) {
  const cudaStream_t stream = make_stream();
  const cudaEvent_t event = make_event();

  EXPECT_EQ(cudaStreamWaitEvent(stream, event, 0), cudaSuccess);

  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
}

TEST_F(CudaEvents, RecordedAgainReportTheNewerRecord) {
  const cudaStream_t stream = make_stream();
  const cudaEvent_t event = make_event();
  recorded(event, stream);
  ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
  ASSERT_EQ(cudaEventQuery(event), cudaSuccess);
  Hold hold(stream);

  recorded(event, stream);

  EXPECT_TRUE(stays_pending(event));
  hold.release();
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
}

TEST_F(CudaEvents, DestroyedWhilePendingAreReleasedLaterAndHoldWaitsUntilThen) {
  Pages result(1);
  result.register_pages(0, 1);
  const cudaStream_t stream = make_stream(), waiting = make_stream();
  const cudaEvent_t event = new_event(), after = make_event();
  unsigned* const device = allocate();
  Hold hold(stream);
  write(device, 4, stream);
  recorded(event, stream);
  ASSERT_EQ(cudaStreamWaitEvent(waiting, event, 0), cudaSuccess);
  copy_out(result.words(), device, waiting);
  recorded(after, waiting);

  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);

  EXPECT_TRUE(hold.holds()) << "it waited";
  EXPECT_TRUE(stays_pending(after));
  hold.release();
  EXPECT_EQ(cudaEventSynchronize(after), cudaSuccess);
  EXPECT_EQ(*result.words(), 4u);
}

/// Destroyed with the test.
class TimedEvent {
 public:
  TimedEvent() { EXPECT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDefault), cudaSuccess); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  ~TimedEvent() { EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess); }
  operator cudaEvent_t() const { return event_; }  // NOLINT: stands for it

 private:
  cudaEvent_t event_ = nullptr;
};

TEST_F(CudaEvents, WithTimesGiveTheTimeBetweenThemWhenBothHavePassed) {
  const cudaStream_t stream = make_stream(), other = make_stream();
  const TimedEvent first, second;
  float forward = 0, backward = 0;
  recorded(first, stream);
  ASSERT_EQ(cudaEventSynchronize(first), cudaSuccess);
  Hold hold(other);
  recorded(second, other);

  EXPECT_EQ(cudaEventElapsedTime(&forward, first, second), cudaErrorNotReady);
  (void)cudaGetLastError();
  hold.release();
  ASSERT_EQ(cudaEventSynchronize(second), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&forward, first, second), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&backward, second, first), cudaSuccess);

  EXPECT_GT(forward, 0);
  EXPECT_EQ(backward, -forward);
}

TEST_F(CudaEvents, WithoutTimesOrRecordsHaveNoTimeBetweenThem) {
  const cudaStream_t stream = make_stream();
  const TimedEvent timed, never_recorded;
  const cudaEvent_t untimed = make_event();
  float elapsed = 0;
  recorded(timed, stream);
  recorded(untimed, stream);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);

  EXPECT_EQ(cudaEventElapsedTime(&elapsed, timed, untimed), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventElapsedTime(&elapsed, never_recorded, timed), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
}

TEST_F(CudaEvents, AreWaitedForByAnyThread) {
  const cudaStream_t stream = make_stream();
  const cudaEvent_t event = make_event();
  Hold hold(stream);
  recorded(event, stream);
  hold.release_after(milliseconds(20));

  std::thread([event] {
    EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  }).join();
}

}  // namespace
}  // namespace penstock::test::cuda_semantics
