#include "config_page.hpp"

#include "command.hpp"

#include <string>
#include <string_view>

namespace penstock::tool {

namespace {

constexpr std::string_view introduction =
    R"(# The keys of ds_config.json

`penstock config keys` prints this page from the table that the reader uses. A key that is not listed here is an
error, and so is a value that the key does not accept. `"auto"` means the default. The smallest file is
`{"train_micro_batch_size_per_gpu": 1}`, which means the default for every key; an empty file is an error, as in
DeepSpeed, because it has no batch size.

The file is read as Hjson, as by DeepSpeed: comments (`//`, `#`, `/* */`), trailing and missing commas, keys and
strings without quotes, `'''` around several lines, missing outer braces. A string without quotes ends with its line;
one that ends with a comma or contains a closing bracket is refused, because JSON was most likely meant (`True,`,
`+8}`). Integers may be written as floats (`5e8`). Values are compared with their case, except where DeepSpeed ignores
it. A number may be a string only in the blocks in which DeepSpeed converts strings: `zero_optimization`, `bf16`,
`fp16`, `tensorboard`, `csv_monitor`, `wandb`, `comet`, `comms_logger`, `hybrid_engine`, `compile` and `timers`. An
integer then consists of digits: `"500000000"`, not `"5e8"`. In the same blocks, true may also be `1` or one of
`"true"`, `"yes"`, `"on"`, `"1"`, `"y"` and `"t"`, false `0` or one of `"false"`, `"no"`, `"off"`, `"0"`, `"n"` and
`"f"`, in any case; in `aio` the words alone.

| Status | Means |
|---|---|
| supported | used by the part of the program in the column "Read by" |
| deprecated | accepted instead of the key that its note names |
| no effect | accepted after a check of its type; a note gives the reason |
| only the default | not supported yet: any other value is refused |
| removed | always refused; the note names the alternative |

)";

/// Where the same file means something else.
struct Difference {
  std::string_view where, in_deepspeed, here;
};

constexpr Difference differences[] = {
    {"unknown and misspelled keys at the top level and in `aio`, `optimizer`, `scheduler` and `checkpoint`",
     "ignored",
     "an error with the nearest spelling; `config check --lenient` makes those of others' blocks notes"},
    {"`\"auto\"`", "each library in front of it fills in values",
     "the default; refused for batch sizes and numbers of steps, and where no library fills it in"},
    {"OneCycle's `cycle_min_mom` and `cycle_max_mom` of 1", "accepted",
     "refused, unless `cycle_momentum` is false"},
    {"`gradient_clipping` and `loss_scale` that are 0 in single precision only", "accepted", "refused"},
    {"masters that the type of the parameters rounds to infinity", "accepted",
     "refused by `Engine::initialize()`, `restore()` and `resume()`"},
    {"`True,` or `+8}` without quotes", "a string up to the end of the line", "refused"},
    {"optimizers and schedulers other than those below", "accepted, or an error when training starts",
     "refused"},
    {"`device: nvme` without `nvme_path`", "an error when training starts", "refused"},
    {"stage 0 with `offload_optimizer`", "the block is ignored", "done, with a note"},
    {"stages 1 and 2 with `offload_optimizer.device: nvme`", "becomes `cpu` without a message", "done"},
    {"stages 0 to 2 with `offload_param`", "the block is ignored", "refused"},
    {"stages 0 and 1", "whole gradients, and at stage 0 whole optimizer states",
     "both are divided among the ranks, with the same bits: less memory, and the same bytes between ranks"},
    {"Muon with `adam_w_mode` false", "groups without `use_muon` are updated by Adam with L2 decay",
     "refused"},
    {"Muon with `gradient_clipping` at stages 1 to 3",
     "clips Muon's updates, with the gradients of other groups",
     "clips gradients, which has little effect on Muon's steps, with a note; see [Muon](optimizer.md)"},
    {"Lion", "an element whose gradient and momentum are 0 moves by the learning rate", "it does not move"},
    {"Adagrad with weight decay", "the decay is in the sum of squares only",
     "in the numerator too, as in PyTorch"},
    {"`max_live_parameters`", "throttles the prefetch", "limits what is gathered"},
    {"`max_reuse_distance`", "parameters that are used again later are dropped after their use",
     "only with `penstock.release` or `penstock.eviction` reuse_distance; else when their memory is needed, "
     "those used "
     "last first"},
    {"`param_persistence_threshold`", "parameters up to it are never dropped",
     "flats of such parameters only are dropped last, and again with each update, as in DeepSpeed"},
    {"`offload_param.max_in_cpu`", "10^9 unless given: what is below it is not on nvme",
     "unless given, all shards are on nvme; host memory that is left keeps copies"},
    {"`sub_group_size`, `offload_optimizer.buffer_count`", "size and number of swap buffers",
     "limits of the optimizer's tiles, and of how many are in flight"},
    {"`communication_data_type: fp32` with 16-bit parameters", "gradients are sent in fp32",
     "sent in 16 bits, which loses nothing, and added in fp32"},
    {"gradients that are not finite", "the step is skipped with fp16, and with bf16 at stages 1 and 2",
     "it is skipped with every type; with `penstock.update_in_backward` it ends the run"},
    {"`aio.block_size`, `aio.queue_depth`", "1 MiB and 8, unless given",
     "4 MiB and 16 MiB in flight, unless given"},
};

std::string code(const std::string& text) {
  return text.empty() ? text : "`" + text + "`";
}

}  // namespace

void print_config_page(const std::vector<zero::ConfigKey>& keys) {
  fmt::print("{}", introduction);
  fmt::print("## Differences from DeepSpeed 0.19.8\n\n| Where | DeepSpeed | Here |\n|---|---|---|\n");
  for (const Difference& one : differences)
    fmt::print("| {} | {} | {} |\n", one.where, one.in_deepspeed, one.here);
  fmt::print(
      "\n## Keys\n\n| Key | Values | Default | Status | Read by | Note | Effect in bytes |\n"
      "|---|---|---|---|---|---|---|\n");
  for (const zero::ConfigKey& key : keys) {
    std::string names = code(key.path);
    for (const std::string& alias : key.aliases) names += ", also " + code(alias);
    fmt::print("| {} | {} | {} | {} | {} | {} | {} |\n", names, key.takes, key.default_value, key.status,
               key.read_by, key.help, key.bytes);
  }
}

}  // namespace penstock::tool
