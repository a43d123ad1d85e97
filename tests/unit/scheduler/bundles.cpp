// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/scheduler/bundles.hpp>

#include <catch2/catch.hpp>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

using namespace dynbatch;

namespace {

std::vector<PolicySpec> specs_of(std::string_view list) {
  std::vector<PolicySpec> specs;
  PolicyListReader reader(list);
  while (reader.has_next()) {
    PolicySpec spec;
    REQUIRE(reader.next(spec));
    specs.push_back(spec);
  }
  return specs;
}

struct Outcome {
  Status status{};
  std::size_t position = 0;
};

Outcome visit_first(std::string_view list) {
  Outcome out;
  PolicyListReader reader(list);
  PolicySpec spec;
  out.status = reader.next(spec);
  if (out.status) {
    out.status = with_bundle(spec, [](const auto&) { return kOk; }, &out.position);
  }
  return out;
}

template <class Bundle>
Bundle configured(std::string_view text) {
  Bundle bundle;
  const std::vector<PolicySpec> specs = specs_of(text);
  REQUIRE(specs.size() == 1);
  CHECK(configure(bundle, specs[0]));
  return bundle;
}

}  // namespace

TEST_CASE("a list of policies is read entry by entry", "[scheduler]") {
  const std::vector<PolicySpec> specs = specs_of("static:batch=8,chunked,dynbatch:alpha=0.5");
  REQUIRE(specs.size() == 3);
  CHECK(specs[0].name == "static");
  CHECK(specs[0].options == "batch=8");
  CHECK(specs[0].text == "static:batch=8");
  CHECK(specs[0].position == 0);
  CHECK(specs[1].name == "chunked");
  CHECK(specs[1].options.empty());
  CHECK(specs[1].position == 15);
  CHECK(specs[2].name == "dynbatch");
  CHECK(specs[2].position == 23);
}

TEST_CASE("a missing name is an error at its position", "[scheduler]") {
  const auto first_error = [](std::string_view list) {
    PolicyListReader reader(list);
    Status status;
    while (reader.has_next() && status) {
      PolicySpec spec;
      status = reader.next(spec);
    }
    return status;
  };
  CHECK(first_error("").code == Errc::InvalidArgument);
  CHECK(first_error("static,,dynbatch").value == 7);
  CHECK(first_error("static,").value == 7);
  CHECK(first_error(":batch=3").value == 0);
  CHECK(std::string(first_error("").field) == "policy");
}

TEST_CASE("the named bundle is visited with its options set", "[scheduler]") {
  std::string seen;
  for (const PolicySpec& spec : specs_of("static,chunked,dynbatch")) {
    CHECK(with_bundle(spec, [&](const auto& bundle) {
      seen += std::string(bundle.kName) + ";";
      return kOk;
    }));
  }
  CHECK(seen == "static;chunked;dynbatch;");
}

TEST_CASE("options reach the policies that are made", "[scheduler]") {
  const auto batches = configured<StaticBundle>("static:batch=7");
  CHECK(batches.make_sizer().config().batch == 7);
  CHECK(batches.make_admission().config().compose == FcfsAdmission::Compose::BatchUntilEmpty);
  CHECK_FALSE(batches.make_admission().splits_prompts());

  const auto chunked = configured<ChunkedBundle>("chunked:budget=512:max_seqs=64");
  CHECK(chunked.make_sizer().config().budget == 512);
  CHECK(chunked.make_sizer().config().max_sequences == 64);
  CHECK(chunked.make_admission().max_bypass() == 0);
  CHECK(chunked.make_admission().config().watermark_permille == 0);

  const auto ours = configured<DynbatchBundle>(
      "dynbatch:alpha=0.25:max_prefill_tokens=4096:min_prefill_tokens=128:max_prefill_seqs=128:"
      "max_decode_seqs=32:late_patience=4:watermark_permille=5:max_bypass=2");
  const DynamicSizer sizer = ours.make_sizer();
  CHECK(sizer.config().alpha == 0.25);
  CHECK(sizer.config().max_prefill_tokens == 4096);
  CHECK(sizer.config().min_prefill_tokens == 128);
  CHECK(sizer.config().max_prefill_sequences == 128);
  CHECK(sizer.config().max_decode_sequences == 32);
  CHECK(ours.make_admission().late_patience() == 4);
  CHECK(ours.make_admission().config().watermark_permille == 5);
  CHECK(ours.make_admission().max_bypass() == 2);
}

TEST_CASE("a profile is one word, and what is set behind it counts", "[scheduler]") {
  const auto interactive = configured<DynbatchBundle>("dynbatch:profile=interactive");
  CHECK(interactive.make_sizer().config().max_prefill_sequences == 128);
  CHECK(interactive.make_sizer().config().max_decode_sequences == 32);
  CHECK(interactive.make_sizer().config().max_prefill_tokens == 1024);
  CHECK(interactive.validate());
  const auto throughput = configured<DynbatchBundle>("dynbatch:profile=throughput");
  CHECK(throughput.make_sizer().config().min_prefill_tokens ==
        throughput.make_sizer().config().max_prefill_tokens);
  CHECK(throughput.make_admission().late_patience() == 0);
  CHECK(throughput.validate());
  const auto mixed = configured<DynbatchBundle>("dynbatch:profile=mixed:late_patience=5");
  CHECK(mixed.make_admission().config().class_delay == seconds(60));
  CHECK(mixed.make_admission().late_patience() == 5);
  CHECK(mixed.make_sizer().config().max_decode_sequences == 0);
  CHECK(mixed.validate());
  const auto balanced = configured<DynbatchBundle>("dynbatch:profile=balanced");
  CHECK(balanced.make_admission().config().class_delay.ns == 0);
  CHECK(balanced.make_admission().late_patience() == DynbatchBundle().admission.late_patience);
  DynbatchBundle bundle;
  const Status status = bundle.set("profile", "fast");
  CHECK(status.code == Errc::InvalidArgument);
  CHECK(std::string(status.field) == "profile");
}

TEST_CASE("the rules of other engines reach the policies that are made", "[scheduler]") {
  const auto orca = configured<OrcaBundle>("orca").make_admission().config();
  CHECK(orca.compose == FcfsAdmission::Compose::PrefillFirst);
  CHECK(orca.reserve == FcfsAdmission::Reserve::NoEvict);
  CHECK(orca.max_bypass == 0);
  CHECK(configured<OrcaBundle>("orca").make_sizer().config().budget == 8192);
  const auto fixed = configured<OrcaBundle>("orca:reserve=8192:mixed").make_admission().config();
  CHECK(fixed.compose == FcfsAdmission::Compose::DecodeFirst);
  CHECK(fixed.reserve == FcfsAdmission::Reserve::Fixed);
  CHECK(fixed.reserve_tokens == 8192);
  CHECK(configured<OrcaBundle>("orca:mixed=0").admission.compose ==
        FcfsAdmission::Compose::PrefillFirst);

  const auto first = configured<PrefillFirstBundle>("prefill_first:budget=4096:split=0");
  CHECK(first.make_sizer().config().budget == 4096);
  CHECK(first.make_admission().config().compose == FcfsAdmission::Compose::PrefillFirst);
  CHECK(first.make_admission().config().watermark_permille == 40);
  CHECK_FALSE(first.make_admission().splits_prompts());

  const auto no_evict = configured<NoEvictBundle>("no_evict:max_seqs=32");
  CHECK(no_evict.make_sizer().config().max_sequences == 32);
  CHECK(no_evict.make_admission().config().reserve == FcfsAdmission::Reserve::NoEvict);
  CHECK_FALSE(no_evict.make_admission().splits_prompts());
  const auto max_util = configured<MaxUtilBundle>("max_util:chunked").make_admission().config();
  CHECK(max_util.reserve == FcfsAdmission::Reserve::FirstChunk);
  CHECK(max_util.split_prompts);
  CHECK(max_util.chunk_unit == 0);
}

TEST_CASE("every name of the list is known, and named in the answer to an unknown one",
          "[scheduler]") {
  std::string names = kBundleNames;
  const std::string answer = visit_first("vllm2").status.text;
  CHECK(answer.find(names) != std::string::npos);
  for (std::size_t at = names.find(' '); at != std::string::npos; at = names.find(' ')) {
    names.erase(at, 1);
  }
  CHECK(specs_of(names).size() == 13);
  for (const PolicySpec& spec : specs_of(names)) {
    INFO(std::string(spec.name));
    CHECK(with_bundle(spec, [&](const auto& bundle) {
      CHECK(spec.name == bundle.kName);
      return bundle.validate();
    }));
  }
}

TEST_CASE("only flags may stand without a value", "[scheduler]") {
  CHECK(visit_first("orca:mixed").status.is_ok());
  CHECK(std::string(visit_first("orca:reserve").status.field) == "option");
  CHECK(visit_first("orca:reserve").status.value == 5);
  CHECK(std::string(visit_first("chunked:mixed").status.field) == "option");
  CHECK(std::string(visit_first("orca:mixed=2").status.field) == "mixed");
  CHECK(std::string(visit_first("orca:reserve=0").status.field) == "reserve");
  for (const char* name : {"orca", "prefill_first", "no_evict", "max_util"}) {
    const Outcome out = visit_first(std::string(name) + ":colour=3");
    CHECK(std::string(out.status.field) == "option");
    CHECK(std::string(out.status.text).find(name) != std::string::npos);
  }
}

TEST_CASE("default bundles are valid", "[scheduler]") {
  CHECK(StaticBundle{}.validate());
  CHECK(ChunkedBundle{}.validate());
  CHECK(DynbatchBundle{}.validate());
  CHECK(ChunkedBundle{}.sizer.budget == 2048);
  CHECK(StaticBundle{}.sizer.batch == 32);
}

TEST_CASE("an unknown policy, key or value is a typed error at its position", "[scheduler]") {
  Outcome out = visit_first("vllm2");
  CHECK(out.status.code == Errc::InvalidArgument);
  CHECK(std::string(out.status.field) == "policy");

  out = visit_first("chunked:budget=2048:colour=3");
  CHECK(std::string(out.status.field) == "option");
  CHECK(out.position == 20);
  CHECK(out.status.value == 20);

  out = visit_first("chunked:budget=many");
  CHECK(std::string(out.status.field) == "budget");
  CHECK(out.position == 8);
  CHECK(std::string(visit_first("chunked:budget=0").status.field) == "budget");
  CHECK(std::string(visit_first("chunked:budget=-1").status.field) == "budget");
  CHECK(std::string(visit_first("chunked:budget=").status.field) == "budget");
  CHECK(visit_first("chunked:budget=99999999999999999999").status.code == Errc::InvalidArgument);

  out = visit_first("chunked:budget");
  CHECK(std::string(out.status.field) == "option");
  CHECK(out.status.value == 8);
  CHECK(visit_first("chunked:").status.value == 8);
  CHECK(visit_first("chunked:=5").status.value == 8);
  CHECK(visit_first("chunked:budget=5:").status.value == 17);
}

TEST_CASE("a bad alpha is refused by its name", "[scheduler]") {
  for (const char* text : {"dynbatch:alpha=0", "dynbatch:alpha=1.5", "dynbatch:alpha=x",
                           "dynbatch:alpha=", "dynbatch:alpha=.", "dynbatch:alpha=0.5.5"}) {
    INFO(text);
    CHECK(std::string(visit_first(text).status.field) == "alpha");
  }
  CHECK(visit_first("dynbatch:alpha=1").status.is_ok());
  CHECK(visit_first("dynbatch:alpha=.5").status.is_ok());
}

TEST_CASE("options that contradict each other are refused", "[scheduler]") {
  const Outcome out = visit_first("dynbatch:min_prefill_tokens=512:max_prefill_tokens=128");
  CHECK(out.status.code == Errc::InvalidConfig);
  CHECK(std::string(out.status.field) == "max_prefill_tokens");
}

TEST_CASE("what the visitor returns is returned", "[scheduler]") {
  PolicyListReader reader("static");
  PolicySpec spec;
  REQUIRE(reader.next(spec));
  const Status status =
      with_bundle(spec, [](const auto&) { return Status{Errc::Closed, "x", 1, 0, ""}; });
  CHECK(status.code == Errc::Closed);
}
