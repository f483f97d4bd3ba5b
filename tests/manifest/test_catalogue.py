"""The operators of the library, family by family: a name that disappears or changes breaks its callers."""

from __future__ import annotations

from tileops.manifest import load_all

#: Names without their suffix ``Op``.
CATALOGUE = {
    "attention": (
        "DSADecodeWithKVCacheFwd DSAPagedFwd FP8LightningIndexerFwd GQABwd GQADenseFwd GQAPagedFwd "
        "GQAPrefillPagedWithKVCacheFwd GQAVarlenFwd MHADecodePagedWithKVCacheFwd MLADecodeWithKVCacheFwd "
        "MLAKVCacheWriteFwd MLAPagedFwd MLAVarlenFwd MergeAttentionStatesFwd NSACompressedVarlenFwd "
        "NSATopKVarlenFwd NSAVarlenFwd PagedKVCacheGatherFwd PagedKVCacheWriteFwd TopKSelectFwd"
    ),
    "convolution": "Conv1dFwd Conv2dFwd Conv3dFwd",
    "elementwise": (
        "AbsFwd AddFwd AlibiFwd BitwiseAndFwd BitwiseNotFwd BitwiseOrFwd BitwiseXorFwd CeilFwd ClampScalarFwd "
        "ClampTensorFwd CosFwd DivFwd DropoutFwd EluFwd EqFwd ErfFwd ExpFwd Expm1Fwd FloorDivideFwd FloorFwd GeFwd "
        "GeluAndMulFwd GeluFwd GeluTanhAndMulFwd GtFwd HardsigmoidFwd HardswishFwd HardtanhFwd IsfiniteFwd "
        "IsinfFwd IsnanFwd LeFwd LeakyReluFwd LerpFwd LerpTensorFwd Log1pFwd LogFwd LogicalAndFwd LogicalNotFwd "
        "LogicalOrFwd LtFwd MaskedFillFwd MaskedFillScalarFwd MaximumFwd MinimumFwd MishFwd MulFwd NanToNumFwd "
        "NeFwd NegFwd PowFwd PreluFwd ReciprocalFwd ReluFwd RemainderFwd RoundFwd RsqrtFwd SeluFwd SigmoidFwd "
        "SignFwd SiluAndMulBwd SiluAndMulFwd SiluFwd SinFwd SinusoidalFwd SoftplusFwd SqrtFwd SubFwd TanhFwd "
        "TruncFwd WhereFwd"
    ),
    "fft": "FFTC2CFwd",
    "gemm": "BmmFP8Fwd BmmFwd GemmFP8Fwd GemmFwd GemmINT8W8A8Fwd GemmW4A16Fwd GemmW4A8Fwd GroupedGemmFwd",
    "linear_attention": (
        "DeltaNetChunkBwd DeltaNetChunkFwd DeltaNetDecodeFwd DeltaNetInferenceFwd GDNFwd GLAChunkBwd GLAChunkFwd "
        "GLADecodeFwd GLAInferenceFwd KDAFwd"
    ),
    "mamba": (
        "CBProducerFwd CausalConv1dFwd CausalConv1dUpdateFwd DaCumsumFwd Mamba2Fwd SSDChunkScanFwd "
        "SSDChunkStateFwd SSDDecodeFwd SSDStatePassingFwd SelectiveScanFwd"
    ),
    "moe": (
        "FusedMoEExpertsFwd FusedMoEFwd FusedMoESharedExpertFwd FusedTopKFwd IndexedExpertMLPFwd MoEExpertMLPFwd "
        "MoEGroupedGemmFP8Fwd MoEGroupedGemmFwd MoEPermuteAlignFwd MoEPostPermuteFwd MoEPrePermuteFwd "
        "SharedExpertMLPFwd"
    ),
    "norm": (
        "AdaLayerNormFwd AdaLayerNormZeroFwd BatchNormBwd BatchNormFwd FusedAddLayerNormFwd FusedAddRMSNormFwd "
        "FusedAddRMSNormPerTokenQuantFwd FusedQKNormRoPEFwd GroupNormFwd InstanceNormFwd LayerNormFwd RMSNormBwd "
        "RMSNormFwd"
    ),
    "pool": (
        "AdaptiveAvgPool2dFwd AdaptiveMaxPool2dFwd AdaptiveMaxPool2dIndicesFwd AvgPool1dFwd AvgPool2dFwd "
        "AvgPool3dFwd MaxPool1dFwd MaxPool1dIndicesFwd MaxPool2dFwd MaxPool2dIndicesFwd MaxPool3dFwd "
        "MaxPool3dIndicesFwd MeanPoolingFwd"
    ),
    "quantization": (
        "FP8QuantFwd FP8QuantPerBlockFwd INT4QuantPerGroupFwd INT8DequantPerBlockFwd INT8DequantPerChannelFwd "
        "INT8DequantPerTensorFwd INT8QuantPerBlockFwd INT8QuantPerChannelFwd INT8QuantPerTensorFwd SmoothQuantFwd"
    ),
    "reduction": (
        "AllFwd AmaxFwd AminFwd AnyFwd ArgmaxFwd ArgminFwd CountNonzeroFwd CumprodFwd CumsumFwd LogSoftmaxFwd "
        "LogSumExpFwd MeanFwd ProdFwd SoftmaxFwd StdFwd SumFwd VarFwd VarMeanFwd VectorNormFwd"
    ),
    "rope": "LongRoPEFwd RoPEFwd RoPELlama31Fwd RoPENeoxPositionIdsFwd YaRNFwd",
    "sampling": "ChainSpeculativeSamplingFwd MinPMaskFwd SamplingFromProbsFwd TopKMaskFwd TopKTopPMaskFwd TopPMaskFwd",
    "sequence_modeling": "EngramDecodeFwd EngramGateConvBwd EngramGateConvFwd MHCPostFwd MHCPreFwd",
    "transform": "HadamardTransformFwd",
}


def test_the_manifest_holds_the_catalogue() -> None:
    found = {(entry.family, name.removesuffix("Op")) for name, entry in load_all().items()}
    wanted = {(family, name) for family, names in CATALOGUE.items() for name in names.split()}
    assert sorted(wanted - found) == []
