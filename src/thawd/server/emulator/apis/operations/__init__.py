"""Operations of API Gateway's own APIs that moto lacks, or has in another form than AWS."""
