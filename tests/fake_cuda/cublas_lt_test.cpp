#include "fake_cuda/fixture.hpp"

#include <cublasLt.h>
#include <bit>
#include <cmath>
#include <limits>

namespace penstock::test::fake_cuda {
namespace {

using Values = std::vector<float>;

/// A matrix on the device and its layout, in columns.
struct Matrix {
  std::byte* data = nullptr;
  cudaDataType type = CUDA_R_16BF;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t leading = 0;
};

/// A product D = A B + beta C of 2 x 3 and 3 x 2 elements, with the means to spoil it.
struct Problem {
  Matrix a, b, c, d;
  cublasOperation_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  std::byte *vector = nullptr, *other = nullptr;
  std::int64_t other_leading = 8;
  float alpha = 1, beta = 0;
  std::size_t workspace_size = 1 << 16;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
};

class FakeCublasLt : public FakeCuda {
 protected:
  ~FakeCublasLt() override {
    for (const auto description : descriptions_) cublasLtMatmulDescDestroy(description);
    for (const auto layout : layouts_) cublasLtMatrixLayoutDestroy(layout);
    for (const auto preference : preferences_) cublasLtMatmulPreferenceDestroy(preference);
  }

  static cublasLtHandle_t make_handle() {
    cublasLtHandle_t handle = nullptr;
    EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
    return handle;
  }
  static std::uint16_t bf16(float x) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
  }
  static std::byte* put(const Values& values, cudaDataType type = CUDA_R_16BF) {
    const std::size_t size = type == CUDA_R_32F ? 4 : 2;
    std::byte* const address = allocate(values.size() * size);
    std::byte* to = bytes(address, values.size() * size);
    for (const float x : values) {
      const std::uint16_t narrow = bf16(x);
      std::memcpy(to, size == 4 ? static_cast<const void*>(&x) : &narrow, size);
      to += size;
    }
    return address;
  }
  static Values read(const std::byte* address, std::size_t count, cudaDataType type = CUDA_R_16BF) {
    Values values;
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t bits = 0;
      if (type == CUDA_R_32F) {
        std::memcpy(&bits, bytes(address + 4 * i, 4), 4);
      } else {
        std::uint16_t narrow = 0;
        std::memcpy(&narrow, bytes(address + 2 * i, 2), 2);
        bits = std::uint32_t{narrow} << 16;
      }
      values.push_back(std::bit_cast<float>(bits));
    }
    return values;
  }

  /// In columns: a = (1 3 5; 2 4 6), b = (1 4; 2 5; 3 6), so a b = (22 49; 28 64).
  static Problem problem(cudaDataType result = CUDA_R_32F) {
    const Values six = {1, 2, 3, 4, 5, 6};
    const Matrix d{put({1, 1, 1, 1}, result), result, 2, 2, 2};
    return {.a = {put(six), CUDA_R_16BF, 2, 3, 2}, .b = {put(six), CUDA_R_16BF, 3, 2, 3}, .c = d, .d = d};
  }

  cublasLtMatmulDesc_t description(const Problem& p) {
    cublasLtMatmulDesc_t made = nullptr;
    EXPECT_EQ(cublasLtMatmulDescCreate(&made, p.compute, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    descriptions_.push_back(made);
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      EXPECT_EQ(cublasLtMatmulDescSetAttribute(made, attribute, &value, sizeof value), CUBLAS_STATUS_SUCCESS);
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.op_a);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.op_b);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.vector);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.other);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.other_leading);
    return made;
  }
  cublasLtMatrixLayout_t layout(const Matrix& matrix) {
    cublasLtMatrixLayout_t made = nullptr;
    EXPECT_EQ(cublasLtMatrixLayoutCreate(&made, matrix.type, matrix.rows, matrix.columns, matrix.leading),
              CUBLAS_STATUS_SUCCESS);
    layouts_.push_back(made);
    return made;
  }
  cublasStatus_t choose(cublasLtHandle_t handle, const Problem& p, cublasLtMatmulAlgo_t& algorithm) {
    cublasLtMatmulPreference_t preference = nullptr;
    EXPECT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
    preferences_.push_back(preference);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &p.workspace_size, sizeof p.workspace_size);
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, description(p), layout(p.a), layout(p.b), layout(p.c),
                                       layout(p.d), preference, 1, &result, &found);
    EXPECT_EQ(found, status == CUBLAS_STATUS_SUCCESS ? 1 : 0);
    algorithm = result.algo;
    return status;
  }
  cublasStatus_t run(cublasLtHandle_t handle, const Problem& p, const cublasLtMatmulAlgo_t& algorithm,
                     cudaStream_t stream = nullptr) {
    return cublasLtMatmul(handle, description(p), &p.alpha, p.a.data, layout(p.a), p.b.data, layout(p.b),
                          &p.beta, p.c.data, layout(p.c), p.d.data, layout(p.d), &algorithm,
                          allocate(p.workspace_size), p.workspace_size, stream);
  }
  void multiply(const Problem& p) {
    const cublasLtHandle_t handle = make_handle();
    cublasLtMatmulAlgo_t algorithm{};
    ASSERT_EQ(choose(handle, p, algorithm), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(run(handle, p, algorithm), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

 private:
  std::vector<cublasLtMatmulDesc_t> descriptions_;
  std::vector<cublasLtMatrixLayout_t> layouts_;
  std::vector<cublasLtMatmulPreference_t> preferences_;
};

TEST_F(FakeCublasLt, MultipliesMatricesInColumnMajorOrder) {
  Problem p = problem();
  p.alpha = 2;
  p.beta = 10;

  multiply(p);

  EXPECT_EQ(read(p.d.data, 4, CUDA_R_32F), (Values{54, 66, 108, 138}));
}

TEST_F(FakeCublasLt, TransposesOperandsAndRoundsTheResultToItsType) {
  Problem p = problem(CUDA_R_16BF);
  p.op_a = p.op_b = CUBLAS_OP_T;
  p.a = {p.a.data, CUDA_R_16BF, 3, 2, 3};
  p.b = {p.b.data, CUDA_R_16BF, 2, 3, 2};
  p.alpha = 1 + 1.0f / 256;  // 64.25 is a tie

  multiply(p);

  EXPECT_EQ(read(p.d.data, 4), (Values{22.125f, 49.25f, 28.125f, 64}));
}

TEST_F(FakeCublasLt, ReadsNoAddendThatBetaLeavesOut) {
  Problem p = problem();
  p.c.data = put(Values(4, std::numeric_limits<float>::quiet_NaN()), CUDA_R_32F);

  multiply(p);

  EXPECT_EQ(read(p.d.data, 4, CUDA_R_32F), (Values{22, 28, 49, 64}));
}

TEST_F(FakeCublasLt, AddsAMatrixThatIsNotTheResult) {
  Problem p = problem();
  p.c.data = put({1, 2, 3, 4}, CUDA_R_32F);
  p.beta = 1;

  multiply(p);

  EXPECT_EQ(read(p.d.data, 4, CUDA_R_32F), (Values{23, 30, 52, 68}));
  EXPECT_EQ(read(p.c.data, 4, CUDA_R_32F), (Values{1, 2, 3, 4}));
}

TEST_F(FakeCublasLt, AddsABiasToEachColumn) {
  Problem p = problem();
  p.epilogue = CUBLASLT_EPILOGUE_BIAS;
  p.vector = put({100, 200}, CUDA_R_32F);

  multiply(p);

  EXPECT_EQ(read(p.d.data, 4, CUDA_R_32F), (Values{122, 228, 149, 264}));
}

TEST_F(FakeCublasLt, KeepsWhatGeluIsAppliedTo) {
  Problem p = problem(CUDA_R_16BF);
  p.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  p.vector = put({-22, -63});
  p.other = put(Values(16, 7));

  multiply(p);

  EXPECT_EQ(read(p.other, 16), (Values{0, -35, 7, 7, 7, 7, 7, 7, 27, 1, 7, 7, 7, 7, 7, 7}));
  const Values y = read(p.d.data, 4);
  EXPECT_EQ(Values(y.begin(), y.end() - 1), (Values{0, 0, 27}));
  EXPECT_NEAR(y[3], 0.841192, 0.002);
}

TEST_F(FakeCublasLt, MultipliesByTheSlopeOfGelu) {
  Problem p = problem();
  p.epilogue = CUBLASLT_EPILOGUE_DGELU;
  p.other = put({-30, 0, 0, 0, 0, 0, 0, 0, 30, 1, 0, 0, 0, 0, 0, 0}, CUDA_R_32F);

  multiply(p);

  const Values y = read(p.d.data, 4, CUDA_R_32F);
  EXPECT_NEAR(y[0], 0, 1e-5);
  EXPECT_NEAR(y[1], 14, 1e-5);
  EXPECT_NEAR(y[2], 49, 1e-5);
  EXPECT_NEAR(y[3], 64 * 1.08296, 1e-3);
}

TEST_F(FakeCublasLt, SumsTheRightOperandOverTheInnerDimension) {
  Problem p = problem();
  p.epilogue = CUBLASLT_EPILOGUE_BGRADB;
  p.vector = put({0, 0}, CUDA_R_32F);

  multiply(p);

  EXPECT_EQ(read(p.vector, 2, CUDA_R_32F), (Values{6, 15}));
  EXPECT_EQ(read(p.d.data, 4, CUDA_R_32F), (Values{22, 28, 49, 64}));
}

TEST_F(FakeCublasLt, RunsWhenItsStreamGetsThere) {
  const cublasLtHandle_t handle = make_handle();
  const cudaStream_t stream = make_stream();
  const Problem p = problem();
  cublasLtMatmulAlgo_t algorithm{};
  ASSERT_EQ(choose(handle, p, algorithm), CUBLAS_STATUS_SUCCESS);
  Gate gate(stream);

  EXPECT_EQ(run(handle, p, algorithm, stream), CUBLAS_STATUS_SUCCESS);

  let_streams_run();
  EXPECT_EQ(read(p.d.data, 4, CUDA_R_32F), (Values{1, 1, 1, 1}));
  gate.open();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(read(p.d.data, 4, CUDA_R_32F), (Values{22, 28, 49, 64}));
  EXPECT_EQ(default_stream_operations(), 0u);
}

TEST_F(FakeCublasLt, RefusesWhatCublasRefuses) {
  const cublasLtHandle_t handle = make_handle();
  const Problem good = problem();
  const auto status_of = [&](const auto& spoil) {
    Problem p = good;
    spoil(p);
    cublasLtMatmulAlgo_t algorithm{};
    return choose(handle, p, algorithm);
  };
  constexpr auto invalid = CUBLAS_STATUS_INVALID_VALUE, unsupported = CUBLAS_STATUS_NOT_SUPPORTED;

  EXPECT_EQ(status_of([](Problem&) {}), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(status_of([](Problem& p) { p.a.rows = 3; }), invalid);
  EXPECT_EQ(status_of([](Problem& p) { p.b.leading = 2; }), invalid);
  EXPECT_EQ(status_of([](Problem& p) { p.op_a = CUBLAS_OP_T; }), invalid);
  EXPECT_EQ(status_of([](Problem& p) { p.c.type = CUDA_R_16BF; }), invalid) << "C and D differ";
  EXPECT_EQ(status_of([](Problem& p) { p.epilogue = CUBLASLT_EPILOGUE_BIAS; }), invalid) << "no vector";
  EXPECT_EQ(status_of([](Problem& p) { p.epilogue = CUBLASLT_EPILOGUE_DGELU; }), invalid)
      << "no other matrix";
  EXPECT_EQ(status_of([&](Problem& p) {
              p.epilogue = CUBLASLT_EPILOGUE_DGELU;
              p.other = good.a.data;
              p.other_leading = 4;
            }),
            invalid)
      << "a leading dimension that 8 does not divide";
  EXPECT_EQ(status_of([](Problem& p) { p.epilogue = CUBLASLT_EPILOGUE_RELU; }), unsupported)
      << "not modelled";
  EXPECT_EQ(status_of([](Problem& p) { p.compute = CUBLAS_COMPUTE_16F; }), unsupported);
  EXPECT_EQ(status_of([](Problem& p) { p.a.type = CUDA_R_32F; }), unsupported);
  EXPECT_EQ(status_of([](Problem& p) { p.workspace_size = 1; }), unsupported);
}

TEST_F(FakeCublasLt, RunsAnAlgorithmOnlyOnWhatItWasChosenFor) {
  const cublasLtHandle_t handle = make_handle();
  const Problem good = problem();
  cublasLtMatmulAlgo_t algorithm{};
  ASSERT_EQ(choose(handle, good, algorithm), CUBLAS_STATUS_SUCCESS);
  Problem other = good, unaligned = good, without_workspace = good, null = good;
  other.alpha = 3;
  other.d.leading = other.c.leading = 3;
  unaligned.b.data += 16;  // the default of the preference is 256 bytes
  without_workspace.workspace_size = 16;
  null.a.data = nullptr;

  EXPECT_EQ(run(handle, good, algorithm), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run(handle, other, algorithm), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(run(handle, unaligned, algorithm), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(run(handle, without_workspace, algorithm), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(run(handle, null, algorithm), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(run(nullptr, good, algorithm), CUBLAS_STATUS_NOT_INITIALIZED);
}

TEST_F(FakeCublasLt, FaultsOutsideOfAnAllocation) {
  for (const int outside : {0, 1, 2, 3}) {
    restart();
    const cublasLtHandle_t handle = make_handle();
    Problem p = problem();
    p.epilogue = CUBLASLT_EPILOGUE_BIAS;
    p.vector = put(outside == 3 ? Values{1} : Values{1, 2}, CUDA_R_32F);
    Matrix* const matrices[] = {&p.a, &p.b, &p.d};
    if (outside < 3) matrices[outside]->data += 256;
    cublasLtMatmulAlgo_t algorithm{};
    ASSERT_EQ(choose(handle, p, algorithm), CUBLAS_STATUS_SUCCESS);

    EXPECT_EQ(run(handle, p, algorithm), CUBLAS_STATUS_SUCCESS);

    EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress) << outside;
    EXPECT_EQ(choose(handle, p, algorithm), CUBLAS_STATUS_EXECUTION_FAILED);
  }
}

TEST_F(FakeCublasLt, HasHandlesThatRestartEndsAndMemoryThatDestroyFrees) {
  const cublasLtHandle_t before = make_handle();
  restart();
  EXPECT_EQ(cublasLtDestroy(before), CUBLAS_STATUS_NOT_INITIALIZED);

  const cublasLtHandle_t handle = make_handle();
  EXPECT_EQ(live().allocations, 1u);
  EXPECT_EQ(cublasLtDestroy(handle), CUBLAS_STATUS_SUCCESS);

  EXPECT_EQ(live(), Live{});
  EXPECT_EQ(count().device_synchronizations(), 1u);
  EXPECT_EQ(cublasLtCreate(nullptr), CUBLAS_STATUS_INVALID_VALUE);
}

}  // namespace
}  // namespace penstock::test::fake_cuda
