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
